#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/messages/carrier.hpp"
#include "common/messages/group.hpp"
#include "common/messages/layers/virtual_clock.hpp"
#include "common/messages/watchdog/flight_recorder.hpp"
#include "common/messages/watchdog/watchdog.hpp"
#include "common/program/options.hpp"
#include "common/program/report.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// Communication options, the same in all lessons, and the objects that they configure.

namespace rankwise {

/// Communication options of a run.
struct CommunicationOptions {
  std::string collectives = "default";                 ///< algorithm; "default": the lesson's choice
  int ranks_per_node = 0;                              ///< ranks that count as one node; 0: a node is a machine
  bool check_messages = false;                         ///< compare the ranks' calls of every collective
  double timeout_s = Watchdog::default_timeout_s;      ///< longest wait before the watchdog acts; 0: no limit
  std::uint32_t chaos = 0;                             ///< seed of chaos testing; 0: off
  std::string link;                                    ///< links of the virtual clock; empty: no clock
  std::string flops = "100GFLOP/s";                    ///< compute rate of the virtual clock
  TransportKind transport = TransportKind::automatic;  ///< library that carries messages

  /// The requested algorithm, or @p fallback if none was requested.
  Algorithm algorithm(Algorithm fallback) const;
};

/// Declares all communication options.
void declare(OptionTable& table, CommunicationOptions& options);

/// Rejects options that these ranks cannot use.
/// @param options   as parsed.
/// @param fallback  algorithm to use unless the user requested one.
/// @param topology  nodes of the ranks, which need not be those of this job.
/// @throws UserError.
void check_options(const CommunicationOptions& options, Algorithm fallback, const Topology& topology);

/// The times of a step, as the document has them.
nlohmann::json as_json(const VirtualStep& step);

/// Communication state that all groups of a run share: carrier, stream, traffic ledger, virtual clock, watchdog.
class Communication {
 public:
  /// All ranks construct and destroy it together.
  /// @param options  accepted by check_options(); they outlive this object.
  /// @param memory   device memory for message buffers.
  /// @param stream   compute stream of the same device: produces the data to send, consumes the data received.
  /// @param time     this rank's time ledger; the watchdog names its open span when nothing moves.
  Communication(const CommunicationOptions& options, const DeviceMemory& memory, Stream& stream,
                const TimeLedger& time);
  ~Communication();
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;

  /// Settings with which a group is constructed.
  /// @param fallback  algorithm to use unless the user requested one.
  GroupSetup setup(Algorithm fallback);

  /// The library that carries messages and the reason, in a sentence; empty if there was no choice.
  const std::string& carrier() const { return carrier_.text; }

  /// Bytes and messages sent so far.
  TrafficLedger& traffic() { return traffic_; }
  /// Bytes and messages sent so far.
  const TrafficLedger& traffic() const { return traffic_; }
  /// The virtual clock; null without `--link`.
  VirtualClock* clock() { return clock_.get(); }
  /// Marks the beginning of a step. Virtual time between two steps, such as that of a validation, does not count.
  void begin_step();
  /// Marks the end of a step.
  void end_step();
  /// This rank's work in the last step on the virtual clock, in order, lane by lane.
  std::span<const VirtualSpan> last_virtual_step() const { return last_step_; }
  /// Times of the last step on the virtual clock; null without `--link`, or before the first step.
  const VirtualStep* last_virtual_times() const
  {
    return virtual_steps_.empty() ? nullptr : &virtual_steps_.back();
  }
  /// Reports block "virtual clock": the time of the last step on the virtual links; adds `virtual` to the JSON
  /// document. Does nothing without `--link`.
  void report_virtual_clock(Report& report) const;

 private:
  const CommunicationOptions& options_;
  DeviceMemory memory_;
  Stream& compute_;
  std::unique_ptr<Stream> stream_;  // carries the messages
  Carrier carrier_;
  TrafficLedger traffic_;
  std::unique_ptr<VirtualClock> clock_;     // null without --link
  std::vector<VirtualStep> virtual_steps_;  // one for each step
  std::vector<VirtualSpan> last_step_;      // spans of the last step, for the timeline
};

}  // namespace rankwise
