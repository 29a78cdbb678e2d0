#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/messages/group.hpp"
#include "gpt2/generate.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/pipeline/local_stage.hpp"

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

/// Generates text with a model whose layers are whole. All ranks of the pipeline make each call together.
class TextPipeline {
 public:
  /// @param stages  of this rank.
  /// @param line    the ranks of the pipeline. All arguments outlive this object.
  TextPipeline(Run& run, const PipelinePlan& plan, const std::vector<LocalStage>& stages, Group& line);

  /// The token that follows a text, the same on all ranks.
  /// @param number  of the token, from 0.
  Token next_token(std::span<const Token> text, std::int64_t number);

 private:
  Run& run_;
  const PipelinePlan& plan_;
  const std::vector<LocalStage>& stages_;
  Group& line_;
  std::vector<GeneratingPass> passes_;  // one for each stage
};

}  // namespace rankwise
