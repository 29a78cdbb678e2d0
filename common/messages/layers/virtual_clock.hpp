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
/// A clock that nobody has to wait for: what a program would take on given processors and links.

namespace rankwise {

/// A point in virtual time; 0 is when the clock was made.
struct Moment {
  Picoseconds since_start = 0;  ///< >= 0

  /// Earlier and later.
  friend auto operator<=>(const Moment&, const Moment&) = default;
};

/// What a rank works on at the same time.
enum class Lane : std::uint8_t { compute, communication };

/// "compute" or "communication".
std::string_view name_of(Lane lane);

/// A piece of work as a timeline shows it.
struct VirtualSpan {
  std::string name;  ///< what was done
  Lane lane;         ///< who did it
  Moment begin;      ///< of it
  Moment end;        ///< begin <= end

  /// The same work at the same time.
  friend bool operator==(const VirtualSpan&, const VirtualSpan&) = default;
};

/// The virtual time that a step took.
struct VirtualStep {
  Picoseconds step = 0;           ///< from its begin to its end: compute + exposed
  Picoseconds compute = 0;        ///< arithmetic
  Picoseconds exposed = 0;        ///< communication that the arithmetic had to wait for
  Picoseconds communication = 0;  ///< in collectives, hidden behind arithmetic or not
  std::int64_t flops = 0;         ///< floating-point operations of that arithmetic

  /// The same times.
  friend bool operator==(const VirtualStep&, const VirtualStep&) = default;
};

/// The virtual time of one rank. It has two lanes, each with a time of its own: compute, and the communication of
/// a queue that makes collectives meanwhile. Communication carry the time from rank to rank (LinkTransport).
///
///     compute         |forward|   backward   |waits|update|        exposed: waits
///     communication           .  |bucket 1|bucket 2|               hidden: the rest
///                                ^handed over      ^waited for
///
/// Nothing depends on real time, nor on which thread comes first: the same program gives the same times on every
/// machine. Times are whole numbers of picoseconds. Threads may use it at once.
///
/// A collective that is made without the queue belongs to the compute lane, which waits for it to the end: all its
/// time is exposed. It shares no link with what the queue sends meanwhile, or real time would decide who goes
/// first.
class VirtualClock {
 public:
  /// @param link             what messages cost.
  /// @param flops_per_s      how fast this rank computes, > 0.
  VirtualClock(const LinkOptions& link, double flops_per_s);

  /// What messages cost.
  const LinkOptions& link() const { return link_; }

  // ---- What the program does ----

  /// Arithmetic: the compute lane goes on by flops / rate, to the nearest picosecond.
  /// @param flops  floating-point operations, >= 0.
  /// @param name   as a timeline shows it.
  void charge_compute(std::int64_t flops, std::string_view name = "compute");

  // ---- What the queue does ----

  /// The program hands over a collective. @return the time of the compute lane.
  Moment handed_over();
  /// The queue begins a collective, not before @p handed; from here to end() this thread is the communication
  /// lane.
  /// @param handed  what handed_over() returned for it.
  /// @param name    as a timeline shows it.
  /// @failure Error while another one is under way.
  void begin(Moment handed, std::string_view name);
  /// It is over. @return the time of the communication lane.
  Moment end();
  /// The program waits for what was handed over; once for each. The compute lane goes on to that time, if it is
  /// not later.
  /// @param ended  what end() returned for it.
  void wait_for(Moment ended);

  // ---- What messages do ----

  /// The time of this thread's lane.
  Moment now() const;
  /// The first moment from now on at which the lane's link is free to send. It is taken for @p occupied from
  /// there.
  Moment depart(Picoseconds occupied);
  /// This thread's lane goes on to the time at which its messages are done, if it is not later.
  void arrive(Moment done);
  /// A collective begins, if this thread is not within one: for those that are made without the queue.
  void enter(std::string_view name);
  /// The collective is over.
  void leave();

  // ---- What came out ----

  /// The times since the last call; a new step begins. Error while something that was handed over has not been waited
  /// for: how far the queue is would depend on real time.
  VirtualStep step();
  /// What was done in the step under way, of each lane in order.
  std::vector<VirtualSpan> spans() const;

 private:
  /// Everything of one lane.
  struct State {
    Moment now;        // how far it is
    Moment link_free;  // when its link can send again
    std::vector<VirtualSpan> spans;
  };
  /// A collective under way.
  struct Open {
    int depth = 0;  // calls of enter() without leave(); a collective of two levels makes several
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

/// Both lanes drawn from the earliest begin to the latest end, one line each: every column shows the first letter
/// of what is done in its middle, or a dot where nothing is.
/// @param spans    in any order; nothing is drawn if there are none, or none takes time.
/// @param columns  how wide, > 0.
std::string timeline(std::span<const VirtualSpan> spans, int columns);

}  // namespace rankwise
