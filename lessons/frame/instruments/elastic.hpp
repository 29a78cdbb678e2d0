#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/messages/group.hpp"
#include "common/program/rank_failure.hpp"
#include "common/program/report.hpp"
#include "gpt2/adamw.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/frame/progress.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/frame/shards.hpp"

/// @file
/// Runs that lose ranks and continue with the rest (`--elastic`).
///
/// Each shard has copies on the next `--copies` ranks. Before an update its gradient is sent to them, and all ranks agree
/// that every rank has all the gradients that it needs. Only then does a rank update its shards, and in the same way the
/// copies that it holds, so both have the same bits. A death shows in messages that fail. If it comes before the agreement,
/// nothing has changed yet, and the step is repeated; if it comes later, the step has been made. So all living ranks are
/// always at the same step. They shrink the communicator, deal the sequences and the shards anew, send each other
/// the missing elements, and continue. In exact arithmetic the parameters equal those of an undisturbed run, since
/// these do not depend on the number of ranks.

namespace rankwise {

/// Elements of the flat vector of the parameter table, on the host.
struct KeptShard {
  Range elements;                            ///< the elements
  std::array<std::vector<float>, 3> values;  ///< weights, first moments and second moments of each
};

/// Elements that a rank sends to another, or has itself.
struct Move {
  int from = 0;    ///< rank that has them
  int to = 0;      ///< rank that needs them
  Range elements;  ///< elements of the flat vector

  /// True if both are equal.
  friend bool operator==(const Move&, const Move&) = default;
};

/// Plans the transfers that give each rank its wanted ranges. A rank keeps what it holds; the lowest rank that
/// holds a range sends it.
/// @param kept    by rank, the ranges that it has.
/// @param wanted  by rank, the ranges that it needs.
/// @return  in the order of ranks and ranges; nothing if elements are lost.
std::optional<std::vector<Move>> plan_moves(const std::vector<std::vector<Range>>& kept,
                                            const std::vector<std::vector<Range>>& wanted);

/// The copies of other ranks' shards on this rank, and the agreement before each update. All ranks make the same calls.
class Copies {
 public:
  /// @param run    outlives the copies.
  /// @param held   this rank's shards; the ranks before it get theirs copied here.
  /// @param count  k: rank r holds copies of the shards of ranks r - 1, ..., r - k, at most all others; 0: every rank holds
  ///               the whole model.
  Copies(Run& run, const HeldShards& held, int count);

  /// Copies the values of all shards, and waits until all ranks have done so.
  void fill();
  /// Sends the gradients of this rank's shards to their copies, and updates the copies here once all ranks agree.
  /// @throws RankFailure  before anything has changed on any rank.
  void commit(const std::vector<Tensor>& gradients, const AdamWStep& step);
  /// Waits until all ranks have come to the same place.
  /// @throws RankFailure  on all ranks, if one has died.
  void agree() const;

  /// All that this rank has: its own shards, then the copies.
  std::vector<KeptShard> kept() const;

 private:
  /// The copy of a shard.
  struct Copy {
    int owner;
    Range elements;
    std::vector<DecayRun> decays;
    Buffer weights, first_moments, second_moments, gradient;
  };

  void exchange(const std::vector<Tensor>& own, const Buffer Copy::*received);

  Run& run_;
  const HeldShards& held_;
  int count_;
  std::vector<Copy> copies_;
  Group group_;
};

/// The rest of a run after a rank has died: everything that does not depend on the ranks.
class Survivors {
 public:
  Reached reached;  ///< steps, losses and validations so far

  /// True if a rank has kept the state of the run, which has begun before.
  bool has_state() const { return updates_.has_value(); }

  /// Calls @p train, and with --elastic again whenever ranks have died and @p check finds that the others can go on.
  /// @return  what it returns.
  int run(Session& session, Report& report, const LessonOptions& options, const std::function<void()>& check,
          const std::function<int()>& train);

  /// Keeps this rank's shards and copies, until done().
  /// @param copies   null without --elastic, when nothing is kept.
  /// @param updates  of the optimizer so far; @p before of them belong to no step.
  /// @param made     the step of the last one, which may not have been reported yet.
  void keep(const Copies* copies, std::int64_t updates, std::int64_t before, const StepReport& made);

  /// Fills this rank's shards from the ones that the living ranks have kept.
  /// @return  updates of the optimizer so far; nothing if no rank has kept anything yet, so that the run begins anew.
  /// @throws UserError  if a shard and all of its copies are lost.
  std::optional<std::int64_t> restore(Run& run, const HeldShards& held);
  /// All ranks are complete: drops the kept shards, and reports the time that it took.
  void done(Report& report, const Session& session);

 private:
  void go_on(Session& session, Report& report, const RankFailure& failure);
  bool shrink(Session& session);
  void receive(Run& run, const HeldShards& held, const std::vector<Move>& moves);

  std::vector<KeptShard> kept_;
  std::optional<std::int64_t> updates_;
  std::string died_;              // who, in words
  std::int64_t moved_bytes_ = 0;  // by all ranks
  std::optional<Stopwatch> since_;
};

/// Bytes of the copies on a rank and of the gradients that they receive, by category, and messages and bytes of a step.
/// @param shards  elements of each shard, by rank.
void add_copies(Costs& costs, const LessonOptions& options, RankOf rank,
                const std::vector<std::vector<std::int64_t>>& shards);

}  // namespace rankwise
