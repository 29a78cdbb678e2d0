#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/messages/carrier.hpp"
#include "common/messages/group.hpp"
#include "common/messages/layers/chaos_transport.hpp"
#include "common/messages/layers/virtual_clock.hpp"
#include "common/messages/watchdog/flight_recorder.hpp"
#include "common/messages/watchdog/watchdog.hpp"
#include "common/program/options.hpp"
#include "common/program/report.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// The options of messages, the same in all lessons, and what they bring about.

namespace rankwise {

/// What the messages of a run are asked to do.
struct CommunicationOptions {
  std::string collectives = "default";                 ///< an algorithm; or the one that suits the arithmetic
  int ranks_per_node = 0;                              ///< pretend that so many ranks make a node; 0: the machines
  bool check_messages = false;                         ///< compare what the ranks call, each time
  double timeout_s = Watchdog::default_timeout_s;      ///< how long ranks may wait for each other; 0: for ever
  std::uint32_t chaos = 0;                             ///< seed of the chaos that messages meet; 0: none
  std::string link;                                    ///< of the virtual clock; empty: none
  std::string flops = "100GFLOP/s";                    ///< of the virtual clock
  TransportKind transport = TransportKind::automatic;  ///< what carries messages

  /// The algorithm that was asked for, or @p fallback.
  Algorithm algorithm(Algorithm fallback) const;
};

/// Declares all of them.
void declare(OptionTable& table, CommunicationOptions& options);

/// Refuses what ranks cannot do.
/// @param options   as parsed.
/// @param fallback  the algorithm, unless the user asked for one.
/// @param topology  of the ranks, which need not be those of the job.
/// @throws UserError.
void check_options(const CommunicationOptions& options, Algorithm fallback, const Topology& topology);

/// What all groups of a run share: who counts, who watches, and how messages are made.
class Communication {
 public:
  /// All ranks make and destroy it together.
  /// @param options  as check_options() has passed them.
  /// @param memory   where message buffers lie.
  /// @param stream   of the same device: makes what is sent and uses what arrives.
  /// @param time     of this rank; what it is doing is named when nothing moves.
  Communication(const CommunicationOptions& options, const DeviceMemory& memory, Stream& stream,
                const TimeLedger& time);
  ~Communication();
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;

  /// What a group is made with.
  /// @param fallback  the algorithm, unless the user asked for one.
  GroupSetup setup(Algorithm fallback);

  /// What carries messages and why, in a sentence; empty where there is nothing to choose.
  const std::string& carrier() const { return carrier_.text; }

  /// Bytes and messages sent so far.
  TrafficLedger& traffic() { return traffic_; }
  /// The same, to be read.
  const TrafficLedger& traffic() const { return traffic_; }
  /// Counts virtual time; null without `--link`.
  VirtualClock* clock() { return clock_ ? &*clock_ : nullptr; }
  /// A step begins: what came since the last one, as validation, does not count in virtual time.
  void begin_step();
  /// A step is over.
  void end_step();
  /// What this rank did in the last step on the virtual clock, lane by lane in order.
  std::span<const VirtualSpan> last_virtual_step() const { return last_step_; }
  /// Times of the last step on the virtual clock; null without `--link`, or before the first step.
  const VirtualStep* last_virtual_times() const { return virtual_steps_.empty() ? nullptr : &virtual_steps_.back(); }
  /// Block "virtual clock": what the last step took on the virtual links; enters `virtual` in the document. Nothing
  /// without `--link`.
  void report_virtual_clock(Report& report) const;

 private:
  const CommunicationOptions& options_;
  DeviceMemory memory_;
  Stream& compute_;
  std::unique_ptr<Stream> stream_;  // of messages
  Carrier carrier_;
  TrafficLedger traffic_;
  std::optional<VirtualClock> clock_;
  std::vector<VirtualStep> virtual_steps_;  // all of them
  std::vector<VirtualSpan> last_step_;      // the last one, to be drawn
  std::optional<Chaos> chaos_;
};

}  // namespace rankwise
