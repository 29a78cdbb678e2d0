#pragma once

#include <cstddef>
#include <functional>

#include "gpt2/activations.hpp"
#include "gpt2/model.hpp"
#include "lessons/09_pipeline_parallel/local_stage.hpp"

/// @file
/// A backward pass in two halves, of which the second is deferred: what zero bubble is made of.

namespace rankwise {

/// What happens between the layers of a stage in a backward pass. Where each rank has whole layers that is nothing; tensor
/// parallelism (lesson 10) derives from this, and sends messages.
class BetweenLayers {
 public:
  virtual ~BetweenLayers() = default;

  /// The sum of all tensor-parallel ranks' gradients in front of a layer.
  /// @param partial  (R, C) of this rank; used up.
  virtual Tensor sum(const Tensor& partial) { return partial; }
  /// The gradient of the stream for all rows, of which this rank has some.
  /// @param own  of this rank's rows.
  /// @param all  (R, C) where it may be put.
  virtual Tensor gather(const Tensor& own, [[maybe_unused]] const Tensor& all) { return own; }
  /// Activations of a branch, with all rows that go into its layers.
  virtual BranchActivations gathered(const BranchActivations& kept) { return kept; }
  /// The same of the head.
  virtual HeadActivations gathered(const HeadActivations& kept) { return kept; }

  /// Branch::output_backward() of this rank's rows, then gather().
  /// @param scratch  (R, C).
  /// @param all      (R, C) where the gradient of all rows may be put.
  virtual Tensor output_backward(const Branch& branch, const Tensor& dx, const Tensor& scratch, const Tensor& all,
                                 const MicroBatch& batch);
  /// Branch::out_bias_backward(), unless output_backward() has made that sum already.
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

/// The backward pass of one micro-batch through a stage, in two halves (zero bubble): first B, the gradient of the stage's input,
/// which the stage before waits for; later W, the gradients of its weights, which nobody waits for. What W needs of B is
/// deferred: it stays with the activations of the micro-batch.
/// @source  Qi et al. 2024 (Zero Bubble Pipeline Parallelism), section 2.
class DeferredWeights {
 public:
  /// Runs the forward pass of branches [first, last) of the stage again.
  using Recompute = std::function<void(std::size_t first, std::size_t last)>;

  /// @param run        of this rank.
  /// @param own        the stage.
  /// @param m          the micro-batch, whose forward pass is over.
  /// @param work       scratch of all passes.
  /// @param between    the layers. All that is given outlives this.
  /// @param recompute  called for each block where its activations were not kept.
  DeferredWeights(const Run& run, const LocalStage& own, const InFlight& m, const Workspace& work,
                  BetweenLayers& between, Recompute recompute);

  /// B: the gradient of the rows in front of the stage.
  /// @param rows         (R, C) the gradient of those after it; not looked at in the last stage.
  /// @param send_buffer  (R, C) where the result is put; not touched in the first stage.
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
