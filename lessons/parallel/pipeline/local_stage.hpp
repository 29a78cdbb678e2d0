#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "gpt2/files/checkpoint.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/model.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/pipeline/pipeline.hpp"
#include "lessons/parallel/pipeline/pipeline_plan.hpp"
#include "lessons/parallel/pipeline/stage.hpp"
#include "lessons/parallel/pipeline/stash.hpp"

/// @file
/// A stage on the rank that holds it.

namespace rankwise {

/// One of a rank's stages, with its parameters, gradients and activations.
struct LocalStage {
  PipelineStage stage;                     ///< number, units, elements
  Model model;                             ///< its branches, and the embedding or head
  ModelTensors weights;                    ///< its parameters, as views
  std::unique_ptr<GradientSum> gradients;  ///< the stage's, summed over micro-batches
  Stash stash;                             ///< activations of its micro-batches in flight
};

/// All stages of a rank, in order.
/// @param run         of the rank. All arguments outlive the stages.
/// @param rank        of the pipeline.
/// @param parameters  of all its stages, one stage after the other.
/// @param work        scratch, shared by all micro-batches.
std::vector<LocalStage> make_local_stages(Run& run, const PipelinePlan& plan, int rank, const Tensor& parameters,
                                          const Workspace& work);

/// Forward pass of a micro-batch through a stage, from the received rows to those in the send buffer.
/// @return  the sum of losses in the last stage, else zero.
using StageForward = std::function<LossSum(const LocalStage& own, const InFlight& m, const Tensor& received,
                                           const Tensor& send_buffer)>;

/// Loss of the validation split by a schedule of forward passes only: the sum over the micro-batches of this rank's
/// pipeline. All ranks of the pipeline make this call.
/// @param stages    of this rank.
/// @param replicas  index and number n of the pipelines that divide the split; each takes every n-th micro-batch.
LossSum validate(Run& run, Pipeline& pipeline, const PipelinePlan& plan, std::vector<LocalStage>& stages,
                 Part replicas, const StageForward& forward);

}  // namespace rankwise
