#pragma once

#include <array>
#include <functional>
#include <vector>

#include "lessons/parallel/context/context_attention.hpp"
#include "lessons/parallel/mesh/five_axes_plan.hpp"
#include "lessons/parallel/pipeline/local_stage.hpp"

/// @file
/// Micro-batches in flight of which a rank has two runs of tokens.

namespace rankwise {

/// Scratch of each run of tokens.
using RunWorkspaces = std::array<Workspace, TokenRuns::of_a_rank>;

/// The slots of all micro-batches in flight in a rank's stages, and the virtual times of their actions. A stage's own stash
/// has the earlier run of tokens; a second one has the later run.
class RunsInFlight {
 public:
  /// Loads the tokens of a run.
  using Load = std::function<MicroBatch(const TokenRun& mine)>;

  /// @param stages  of this rank. All arguments outlive this object.
  RunsInFlight(Run& run, const FiveAxesPlan& plan, const std::vector<LocalStage>& stages,
               const RunWorkspaces& work);

  /// Forgets the times of the step before.
  void begin_step() { times_.clear(); }
  /// Before an action in stage number @p place: both runs of its micro-batch.
  /// @param load  called for each run before a forward pass.
  std::vector<TokenRun> before(LocalStage& own, std::size_t place, const Action& action, const Load& load);
  /// After the action: frees the slots if it was the last one of the micro-batch.
  /// @param training  whether a backward pass follows a forward pass.
  void after(LocalStage& own, std::size_t place, const Action& action, bool training);

  /// Carries out a schedule of forward passes without backward passes. All ranks of the pipeline make this call.
  /// @param pipeline, stages  of this rank.
  /// @param passes            micro-batches.
  /// @param load              loads the tokens of a run of micro-batch number 0, 1, ...
  /// @param forward           forward pass of a stage for both runs of a micro-batch; returns the loss, if it has one.
  /// @return                  the sum of what @p forward returns.
  LossSum forward_only(Pipeline& pipeline, std::vector<LocalStage>& stages, std::int64_t passes,
                       const std::function<MicroBatch(const TokenRun& mine, std::int64_t number)>& load,
                       const std::function<LossSum(const LocalStage&, std::vector<TokenRun>&,
                                                   const Tensor& received, const Tensor& send_buffer)>& forward);

  /// The actions of the step so far, in order, with their times on the virtual clock in picoseconds.
  const std::vector<PerformedAction>& times() const { return times_; }

 private:
  std::int64_t now() const;

  Run& run_;
  const PipelinePlan& plan_;
  const RunWorkspaces& work_;
  std::vector<Range> tokens_;  // one range for each run
  std::vector<Stash> later_;   // by stage
  std::vector<PerformedAction> times_;
};

}  // namespace rankwise
