#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "gpt2/checkpoint.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/model.hpp"
#include "lessons/09_pipeline_parallel/pipeline.hpp"
#include "lessons/09_pipeline_parallel/pipeline_plan.hpp"
#include "lessons/09_pipeline_parallel/stage.hpp"
#include "lessons/09_pipeline_parallel/stash.hpp"
#include "lessons/frame/run.hpp"

/// @file
/// A stage on the rank that has it.

namespace rankwise {

/// One of a rank's stages, with what it computes with.
struct LocalStage {
  PipelineStage stage;                     ///< which
  Model model;                             ///< its run of the chain
  ModelTensors weights;                    ///< its parameters, as views
  std::unique_ptr<GradientSum> gradients;  ///< of all of them
  Stash stash;                             ///< activations of its micro-batches in flight
};

/// All stages of a rank, in order.
/// @param run         of the rank; outlives the stages, as everything here does.
/// @param rank        of the pipeline.
/// @param parameters  of all its stages, one stage after the other.
/// @param work        scratch of all passes.
std::vector<LocalStage> make_local_stages(Run& run, const PipelinePlan& plan, int rank, const Tensor& parameters,
                                          const Workspace& work);

/// Forward pass of a micro-batch through a stage, from the rows that were received to those that are sent on.
/// @return  the sum of losses, in the last stage.
using StageForward = std::function<LossSum(const LocalStage& own, const InFlight& m, const Tensor& received,
                                           const Tensor& send_buffer)>;

/// Loss of the validation split, whose micro-batches follow each other through the stages, forwards only: a sum over what this
/// rank's pipeline computes. All ranks of the pipeline make this call.
/// @param stages    of this rank.
/// @param replicas  index and number n of the pipelines that share the split; each takes every n-th micro-batch.
LossSum validate(Run& run, Pipeline& pipeline, const PipelinePlan& plan, std::vector<LocalStage>& stages,
                 Part replicas, const StageForward& forward);

}  // namespace rankwise
