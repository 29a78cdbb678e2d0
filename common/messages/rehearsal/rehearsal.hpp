#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/messages/layers/virtual_clock.hpp"
#include "common/messages/transport.hpp"
#include "common/program/session.hpp"

/// @file
/// A step without ranks: one process plays the part of each rank in turn, and writes down what it would do.

namespace rankwise {

/// A message of a rehearsed rank.
struct RehearsedMessage {
  Transfer::Direction direction;  ///< sent or received
  int peer;                       ///< the other rank, numbered as in the job
  std::string group;              ///< name of the group
  std::int64_t bytes;             ///< > 0
};

/// One action of a rank.
struct ScriptLine {
  /// Kind of action; only some kinds use `number` and `takes`.
  enum class Kind : std::uint8_t {
    compute,    ///< arithmetic, which takes `takes`
    start,      ///< starts the messages of transfer `number`
    finish,     ///< waits for transfer `number`
    hand_over,  ///< hands collective `number` over to the queue
    begin,      ///< the queue begins it
    end,        ///< the queue has ended it
    wait,       ///< waits for its end
    enter,      ///< begins a collective without the queue
    leave,      ///< ends it
    step,       ///< a step begins or ends
  };

  Kind kind;                                 ///< kind of action
  std::int64_t number = 0;                   ///< number of a transfer or of a queue's collective, from 0
  Picoseconds takes = 0;                     ///< duration of arithmetic
  std::int64_t flops = 0;                    ///< its floating-point operations
  std::vector<RehearsedMessage> messages{};  ///< messages of a transfer that starts
};

/// The actions of one rank, in order: a list for the computation and one for the queue, which run concurrently.
class StepScript {
 public:
  /// Adds a line to the list of the lane that is under way.
  void add(ScriptLine line);
  /// The queue has begun or ended a collective: further lines are of this lane.
  void switch_to(Lane lane) { lane_ = lane; }
  /// The number of the next transfer.
  std::int64_t next_transfer() { return transfers_++; }

  std::int64_t peak_bytes = 0;  ///< peak of device memory: the peaks of all categories, added up

  /// The lines of a lane.
  const std::vector<ScriptLine>& lines(Lane lane) const { return lanes_[static_cast<std::size_t>(lane)]; }

 private:
  std::array<std::vector<ScriptLine>, 2> lanes_;  // by lane
  Lane lane_ = Lane::compute;
  std::int64_t transfers_ = 0;
};

/// While it exists, this thread plays rank r of N ranks: Communicator::world() has these ranks, topology_of_job() is
/// theirs, groups send nothing, queues run their collectives at once, and everything is written to a script.
///
/// Groups, devices and buffers that are made meanwhile must be destroyed before it ends.
class Rehearsal {
 public:
  /// @param rank    the part to play.
  /// @param script  outlives this.
  Rehearsal(RankOf rank, StepScript& script);
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  /// The rehearsal on this thread, or null.
  static const Rehearsal* current();

  RankOf rank;         ///< r of N
  StepScript& script;  ///< its actions
};

/// A clock that writes the calls of the program and of its queue to a script and has no time of its own.
class RehearsedClock final : public VirtualClock {
 public:
  /// @param script  outlives this.
  RehearsedClock(const LinkOptions& link, double flops_per_s, StepScript& script);

  void charge_compute(std::int64_t flops, std::string_view name) override;
  Moment handed_over() override;
  void begin(Moment handed, std::string_view name) override;
  Moment end() override;
  void wait_for(Moment ended) override;
  VirtualStep step() override;

 private:
  StepScript& script_;
  std::int64_t handed_over_ = 0;  // collectives of the queue so far; a Moment is the number of one
  Moment under_way_;
};

/// A transport that sends nothing: it writes transfers to a script.
class RehearsedTransport final : public Transport {
 public:
  /// @param ranks_in_job  ranks of the group, in order.
  /// @param rank          this one, numbered as in the group.
  /// @param stream        outlives this, as does @p script.
  RehearsedTransport(std::string group, std::vector<int> ranks_in_job, int rank, Stream& stream,
                     StepScript& script);

  int rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(ranks_in_job_.size()); }
  Stream& stream() override { return stream_; }
  Ticket start(std::span<const Transfer> transfers) override;
  void finish(Ticket ticket) override;
  void enter(const Collective&) override;
  void leave() override;

 private:
  std::string group_;
  std::vector<int> ranks_in_job_;
  int rank_;
  Stream& stream_;
  StepScript& script_;
};

/// The times of the last step on the virtual clocks of all ranks, as a run would have them: every lane and every message
/// keep to the rules of VirtualClock and LinkTransport.
/// @param scripts  scripts of ranks 0 to N - 1.
/// @throws Error   if ranks wait for each other forever.
std::vector<VirtualStep> replay(const std::vector<StepScript>& scripts, const LinkOptions& links);

/// Writes scripts to a file, one line of JSON for each of their lines: `rank` and `lane`; `do`, the kind; and for some
/// kinds `number`, `ps` and `flops`, or `messages`, each with `to` or `from`, `bytes` and `group`.
void write_scripts(const std::string& path, const std::vector<StepScript>& scripts);

}  // namespace rankwise
