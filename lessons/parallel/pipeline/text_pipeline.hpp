#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/messages/group.hpp"
#include "gpt2/generate.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/pipeline/local_stage.hpp"

/// @file
/// Text from a model whose stages are on several ranks.

namespace rankwise {

/// The logits of a token over the whole vocabulary, of which each tensor-parallel rank has a part.
/// @param part  of this rank, (V / t).
/// @param tp    the t ranks; all of them make this call.
std::vector<float> gather_logits(const Run& run, const Tensor& part, Group& tp);

/// Generates text. The stages are computed one after the other, each on its rank, which broadcasts the output; meanwhile
/// the other ranks wait: a token is known only after the last stage. All ranks of the pipeline make each call together,
/// and those that divide its layers.
class TextPipeline {
 public:
  /// @param stages  of this rank.
  /// @param line    the ranks of the pipeline.
  /// @param tp      the ranks that divide every layer; null if layers are whole. All arguments outlive this object.
  TextPipeline(Run& run, const PipelinePlan& plan, const std::vector<LocalStage>& stages, Group& line,
               Group* tp = nullptr);

  /// The token that follows a text, the same on all ranks.
  /// @param number  of the token, from 0.
  Token next_token(std::span<const Token> text, std::int64_t number);

 private:
  std::int64_t compute(const PipelineStage& stage, std::size_t place, std::int64_t number);

  Run& run_;
  const PipelinePlan& plan_;
  const std::vector<LocalStage>& stages_;
  Group& line_;
  Group* tp_;
  std::vector<GeneratingPass> passes_;  // one for each stage
};

}  // namespace rankwise
