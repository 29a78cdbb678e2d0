#pragma once

#include <cstddef>
#include <functional>

#include "gpt2/activations.hpp"
#include "gpt2/model.hpp"
#include "lessons/09_pipeline_parallel/local_stage.hpp"

/// @file
/// A backward pass in two halves, of which zero bubble defers the second.

namespace rankwise {

/// Messages between the layers of a stage in a backward pass. A rank with whole layers sends none; lesson 10
/// derives a class from this one for tensor parallelism.
class BetweenLayers {
 public:
  virtual ~BetweenLayers() = default;

  /// The gradient of a layer's input: the sum over all tensor-parallel ranks.
  /// @param partial  (R, C) of this rank; used up.
  virtual Tensor sum(const Tensor& partial) { return partial; }
  /// The gradient of all rows of the stream, gathered from the tensor-parallel ranks.
  /// @param own  gradient of this rank's rows.
  /// @param all  (R, C) buffer for the result, which is used if something is gathered.
  virtual Tensor gather(const Tensor& own, [[maybe_unused]] const Tensor& all) { return own; }
  /// Activations of a branch with the normalised rows of all ranks.
  virtual BranchActivations gathered(const BranchActivations& kept) { return kept; }
  /// The same of the head.
  virtual HeadActivations gathered(const HeadActivations& kept) { return kept; }

  /// Branch::output_backward() of this rank's rows, then gather().
  /// @param scratch  (R, C).
  /// @param all      (R, C) buffer for the gradient of all rows.
  virtual Tensor output_backward(const Branch& branch, const Tensor& dx, const Tensor& scratch, const Tensor& all,
                                 const MicroBatch& batch);
  /// Branch::out_bias_backward(), unless output_backward() has computed that sum already.
  virtual void out_bias_backward(const Branch& branch, const BranchTensors& d, const Tensor& doutput,
                                 const MicroBatch& batch);
  /// Branch::normalise_backward() of this rank's rows.
  virtual void normalise_backward(const Branch& branch, const Tensor& dx, const BranchTensors& d,
                                  const Tensor& dnormalised, const BranchActivations& a, const BranchTensors& p,
                                  const MicroBatch& batch);
  /// Head::normalise_backward() of this rank's rows.
  virtual void normalise_backward(const Head& head, const Tensor& dx, const HeadTensors& d,
                                  const Tensor& dnormalised, const HeadActivations& a, const HeadTensors& p,
                                  const MicroBatch& batch);
};

/// The backward pass of one micro-batch through a stage, in two halves (zero bubble): first B, the gradient of the
/// stage's input, which the stage before waits for; later W, the gradients of its weights, which no other rank
/// waits for. Between the two, the gradients that W needs are kept with the micro-batch's activations.
/// @source  Qi et al. 2024 (Zero Bubble Pipeline Parallelism), section 2.
class DeferredWeights {
 public:
  /// Runs the forward pass of branches [first, last) of the stage again.
  using Recompute = std::function<void(std::size_t first, std::size_t last)>;

  /// @param run        of this rank.
  /// @param own        the stage.
  /// @param m          the micro-batch, whose forward pass through the stage is complete.
  /// @param work       scratch, shared by all micro-batches.
  /// @param between    messages between the layers. All arguments outlive this object.
  /// @param recompute  called for each block whose activations were not kept.
  DeferredWeights(const Run& run, const LocalStage& own, const InFlight& m, const Workspace& work,
                  BetweenLayers& between, Recompute recompute);

  /// B: computes the gradient of the stage's input.
  /// @param rows         (R, C) gradient of the stage's output; ignored in the last stage.
  /// @param send_buffer  (R, C) for the result; untouched in the first stage.
  void backward_input(const Tensor& rows, const Tensor& send_buffer);
  /// W: adds the gradients of the stage's parameters to @p d.
  void backward_weights(const ModelTensors& d);

 private:
  void recompute_block_of(std::size_t branch);

  const Run& run_;
  const LocalStage& own_;
  const InFlight& m_;
  const Workspace& work_;
  BetweenLayers& between_;
  Recompute recompute_;
};

}  // namespace rankwise
