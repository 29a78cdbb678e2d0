#pragma once

#include <functional>
#include <vector>

#include "common/messages/group.hpp"
#include "gpt2/generate.hpp"
#include "lessons/09_pipeline_parallel/stage.hpp"

/// @file
/// Text from a model whose stages are on several ranks.

namespace rankwise {

/// Goes through all stages, one after the other, each on its rank; the others wait for what it made: a token is not known before
/// all have been passed through. All ranks of the line make this call.
/// @param stages   of the model, in order.
/// @param line     the ranks of the pipeline.
/// @param passes   of this rank's stages, begun with the text so far.
/// @param compute  computes this rank's stage number @p place: its embedding and head, if it has them, and all its branches.
void pass_through(const std::vector<PipelineStage>& stages, Group& line, const std::vector<GeneratingPass>& passes,
                  const std::function<void(const PipelineStage& stage, std::size_t place)>& compute);

}  // namespace rankwise
