#pragma once

#include <functional>
#include <vector>

#include "common/messages/group.hpp"
#include "gpt2/generate.hpp"
#include "lessons/09_pipeline_parallel/stage.hpp"

/// @file
/// Text from a model whose stages are on several ranks.

namespace rankwise {

/// Computes all stages one after the other, each on its rank, which broadcasts the output; meanwhile the other
/// ranks wait. A token is known only after the last stage. All ranks of the line make this call.
/// @param stages   of the model, in order.
/// @param line     the ranks of the pipeline.
/// @param passes   of this rank's stages, begun with the text so far.
/// @param compute  computes this rank's stage number @p place: embedding and head, if it has them, and all its
///                 branches.
void pass_through(const std::vector<PipelineStage>& stages, Group& line, const std::vector<GeneratingPass>& passes,
                  const std::function<void(const PipelineStage& stage, std::size_t place)>& compute);

}  // namespace rankwise
