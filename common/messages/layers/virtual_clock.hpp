#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/messages/layers/link_options.hpp"

/// @file
/// A simulated clock: the time that a program would take on given processors and links.

namespace rankwise {

/// A point in virtual time, relative to the clock's construction.
struct Moment {
  Picoseconds since_start = 0;  ///< >= 0

  /// Order in time.
  friend auto operator<=>(const Moment&, const Moment&) = default;
};

/// The two concurrent activities of a rank.
enum class Lane : std::uint8_t { compute, communication };

/// "compute" or "communication".
std::string_view name_of(Lane lane);

/// A piece of work as a timeline shows it.
struct VirtualSpan {
  std::string name;  ///< name of the work
  Lane lane;         ///< lane that did it
  Moment begin;      ///< start time
  Moment end;        ///< end time, >= begin

  /// True if name, lane and times are equal.
  friend bool operator==(const VirtualSpan&, const VirtualSpan&) = default;
};

/// Virtual time of a step.
struct VirtualStep {
  Picoseconds step = 0;           ///< duration: compute + exposed
  Picoseconds compute = 0;        ///< arithmetic
  Picoseconds exposed = 0;        ///< communication for which the arithmetic had to wait
  Picoseconds communication = 0;  ///< all collectives, overlapped with arithmetic or not
  std::int64_t flops = 0;         ///< floating-point operations of the arithmetic

  /// True if all times are equal.
  friend bool operator==(const VirtualStep&, const VirtualStep&) = default;
};

/// The virtual time of one rank. It has two lanes with separate times: compute, and communication by a queue that
/// runs collectives concurrently. Messages carry the time from rank to rank (LinkTransport).
///
///     compute         |forward|   backward   |waits|update|        exposed: waits
///     communication           .  |bucket 1|bucket 2|               hidden: the rest
///                                ^handed over      ^waited for
///
/// Virtual times depend neither on real time nor on the scheduling of threads: the same program gives the same
/// times on every machine. Times are whole picoseconds. Thread-safe.
///
/// A collective called without the queue belongs to the compute lane, which waits until it ends: all its time is
/// exposed. It does not share a link with the queue's concurrent messages; otherwise real time would decide which
/// goes first.
class VirtualClock {
 public:
  /// @param link             links between ranks.
  /// @param flops_per_s      compute rate of this rank, > 0.
  VirtualClock(const LinkOptions& link, double flops_per_s);
  virtual ~VirtualClock() = default;
  VirtualClock(const VirtualClock&) = delete;
  VirtualClock& operator=(const VirtualClock&) = delete;

  /// Links between ranks.
  const LinkOptions& link() const { return link_; }

  // ---- Called by the program ----

  /// Arithmetic: advances the compute lane by flops / rate, to the nearest picosecond.
  /// @param flops  floating-point operations, >= 0.
  /// @param name   as a timeline shows it.
  virtual void charge_compute(std::int64_t flops, std::string_view name = "compute");

  // ---- Called by the queue ----

  /// The program hands a collective over to the queue. @return the time of the compute lane.
  virtual Moment handed_over();
  /// The queue begins a collective, not before @p handed; until end() this thread is the communication lane.
  /// @param handed  result of its handed_over().
  /// @param name    as a timeline shows it.
  /// @failure Error if another collective is under way.
  virtual void begin(Moment handed, std::string_view name);
  /// The collective ends. @return the time of the communication lane.
  virtual Moment end();
  /// The program waits for a collective that it handed over, once for each: advances the compute lane to @p ended
  /// unless it is later already.
  /// @param ended  result of its end().
  virtual void wait_for(Moment ended);

  // ---- Called by messages ----

  /// The time of this thread's lane.
  Moment now() const;
  /// Occupies the lane's link for @p occupied, from the first moment at which it is free. @return that moment.
  Moment depart(Picoseconds occupied);
  /// Advances this thread's lane to @p done, the time at which its messages are done, unless it is later already.
  void arrive(Moment done);
  /// A collective begins that was called without the queue; ignored inside another collective of this thread.
  void enter(std::string_view name);
  /// The collective ends.
  void leave();

  // ---- Results ----

  /// Returns the times since the last call and begins a new step. Error while a collective that was handed over has
  /// not been waited for, because the queue's progress would depend on real time.
  virtual VirtualStep step();
  /// Work of the current step, in order within each lane.
  std::vector<VirtualSpan> spans() const;

 protected:
  /// The time that this rank takes for arithmetic, to the nearest picosecond.
  Picoseconds time_of(std::int64_t flops) const { return virtual_time(flops, flops_per_s_); }

 private:
  /// State of one lane.
  struct State {
    Moment now;        // its time
    Moment link_free;  // time at which its link can send again
    std::vector<VirtualSpan> spans;
  };
  /// A collective under way.
  struct Open {
    int depth = 0;  // nested calls of enter(); collectives of two levels nest
    std::string name;
    Moment begin;
  };

  Lane lane_of_thread() const;
  State& state_of_thread() { return lanes_[static_cast<std::size_t>(lane_of_thread())]; }
  State& state(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  void wait_until(Moment moment);
  void close(const Open& open, Moment end);

  const LinkOptions link_;
  const double flops_per_s_;

  mutable std::mutex mutex_;
  std::array<State, 2> lanes_;
  std::thread::id queue_;  // the thread between begin() and end()
  Open queued_, direct_;
  std::int64_t not_waited_for_ = 0;
  Moment step_began_;
  VirtualStep step_;
};

/// Draws both lanes from the earliest start to the latest end, one line each: every column shows the first letter
/// of the span at its middle, or a dot if there is none.
/// @param spans    in any order; nothing is drawn if none takes time.
/// @param columns  width, > 0.
std::string timeline(std::span<const VirtualSpan> spans, int columns);

}  // namespace rankwise
