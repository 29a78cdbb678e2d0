#pragma once

#include <vector>

#include "lessons/08_tensor_parallel/row_gradients.hpp"
#include "lessons/08_tensor_parallel/tensor_parallel_messages.hpp"
#include "lessons/09_pipeline_parallel/deferred_weights.hpp"

/// @file
/// Tensor parallelism inside a stage.

namespace rankwise {

/// Messages between the layers of a stage that tensor-parallel ranks divide, and the sums over this rank's rows.
class DividedLayers final : public BetweenLayers {
 public:
  /// @param parts      messages of the tensor-parallel ranks; outlives this object.
  /// @param over_rows  sums over this rank's rows.
  /// @param tokens     this rank's part of each sequence.
  DividedLayers(TensorParallelMessages& parts, RowGradients over_rows, Part tokens);

  Tensor sum(const Tensor& partial) override { return parts_.sum(partial); }
  Tensor gather(const Tensor& own, const Tensor& all) override { return parts_.gather(own, all); }
  BranchActivations gathered(const BranchActivations& kept) override { return parts_.regathered(kept); }
  HeadActivations gathered(const HeadActivations& kept) override { return parts_.regathered(kept); }
  Tensor output_backward(const Branch& branch, const Tensor& dx, const Tensor& scratch, const Tensor& all,
                         const MicroBatch& batch) override;
  void out_bias_backward(const Branch& branch, const BranchTensors& d, const Tensor& doutput,
                         const MicroBatch& batch) override;
  void normalise_backward(const Branch& branch, const Tensor& dx, const BranchTensors& d, const Tensor& dnormalised,
                          const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) override;
  void normalise_backward(const Head& head, const Tensor& dx, const HeadTensors& d, const Tensor& dnormalised,
                          const HeadActivations& a, const HeadTensors& p, const MicroBatch& batch) override;

  /// Sums over this rank's rows.
  RowGradients& over_rows() { return over_rows_; }

 private:
  TensorParallelMessages& parts_;
  RowGradients over_rows_;
  Part tokens_;
};

/// DividedLayers of each stage of a rank, one for each backward pass under way at once: one in all, or with
/// deferred weight gradients one for each micro-batch in flight.
class DividedStages {
 public:
  /// @param run, parts  outlive this object.
  DividedStages(Run& run, const PipelinePlan& plan, const std::vector<LocalStage>& stages,
                TensorParallelMessages& parts);

  /// The DividedLayers of a micro-batch in a stage.
  DividedLayers& of(const LocalStage& own, const InFlight& m);

 private:
  std::vector<std::vector<DividedLayers>> of_stages_;
  int ranks_;  // of the pipeline
  bool deferred_;
};

/// The loss of a micro-batch over a divided vocabulary, as in lesson 08: the tensor-parallel ranks exchange the
/// maximum, the sum of exponentials and the target's logit of each token.
LossSum vocabulary_parallel_loss(const Head& head, const HeadTensors& weights, const HeadActivations& kept,
                                 const MicroBatch& batch, TensorParallelMessages& parts);

}  // namespace rankwise
