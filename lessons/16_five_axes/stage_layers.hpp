#pragma once

#include <array>
#include <vector>

#include "lessons/16_five_axes/experts_on_mesh.hpp"
#include "lessons/16_five_axes/runs_in_flight.hpp"
#include "lessons/parallel/context/ring_attention.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"
#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"

/// @file
/// The layers of a stage, in which the axes meet.

namespace rankwise {

/// The layers of a rank's stages for both of its runs of tokens, R = B T / (2 c) rows each.
///
///     norm           rows of this rank            T / (2 c tp) tokens with sequence parallelism
///     f              all-gather along tp          all tokens of the run
///     q, k, v        columns of this rank         H / tp heads
///     attention      ring along cp                all keys, for these heads
///     experts        choices along cp, all-to-all along ep, sums of their parts along tp
///     projection     rows of this rank, g         sum along tp, or reduce-scatter
///     residual       rows of this rank
class StageLayers {
 public:
  /// @param stages, work  of this rank.
  /// @param cp, tp        its groups along these axes. All arguments outlive this object.
  StageLayers(Run& run, const FiveAxesPlan& plan, const std::vector<LocalStage>& stages, const RunWorkspaces& work,
              ExpertsOnMesh& experts, Group& cp, Group& tp);

  /// Forward pass of a stage. The last stage returns the loss; what the backward pass needs is kept.
  /// @param both         runs of a micro-batch.
  /// @param received     (2, R, C), or (2, R / tp, C): of each run the stream from the stage before.
  /// @param send_buffer  of the same shape, for the output of the stage. Both are empty at the ends of the pipeline.
  LossSum forward(const LocalStage& own, std::vector<TokenRun>& both, const Tensor& received,
                  const Tensor& send_buffer);
  /// Adds the gradient of the loss with respect to the parameters of stage number @p place of this rank to the gradients of
  /// each run. The other arguments are those of forward(), for gradients.
  void backward(const LocalStage& own, std::size_t place, std::vector<TokenRun>& both, const Tensor& received,
                const Tensor& send_buffer);
  /// After the backward pass of run @p k: completes the gradients that are sums over rows which tp divides.
  /// @param gradients  (stage.size()) of the run.
  void sum_over_rows(std::size_t place, std::size_t k, const Tensor& gradients)
  {
    row_gradients_[k][place].add_to(gradients, tp_);
  }

 private:
  void forward_branches(const LocalStage& own, std::size_t first, std::size_t last, std::vector<TokenRun>& both,
                        const Tensor& send_buffer = {});
  void backward_branch(const LocalStage& own, std::size_t place, std::size_t i, std::vector<TokenRun>& both);
  // The rows of a run that this rank has between the divided layers.
  MicroBatch rows_of(const TokenRun& mine) const { return tokens_of(mine.batch, run_.shape.tokens); }

  Run& run_;
  ExpertsOnMesh& experts_;
  Group& tp_;
  RingAttention attention_;                    // queries here, keys of all ranks along cp
  std::vector<TensorParallelMessages> parts_;  // operators f and g of lesson 08 for each run
  std::array<std::vector<RowGradients>, TokenRuns::of_a_rank> row_gradients_;  // by run and stage
};

}  // namespace rankwise
