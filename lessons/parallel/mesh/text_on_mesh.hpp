#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/messages/group.hpp"
#include "gpt2/generate.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/pipeline/local_stage.hpp"

/// @file
/// Text from a model that is divided along tp and pp.

namespace rankwise {

/// The logits of a token, from those of the vocabulary entries of each tensor-parallel rank.
/// @param part  of this rank, (V / t).
/// @param all   (V) scratch.
std::vector<float> gather_logits(const Run& run, const Tensor& part, const Tensor& all, Group& tp);

/// Generates text. All ranks of a replica make each call together.
class TextOnMesh {
 public:
  /// @param stages  of this rank.
  /// @param pp, tp  its groups along these axes. All arguments outlive this object.
  TextOnMesh(Run& run, const PipelinePlan& plan, const std::vector<LocalStage>& stages, Group& pp, Group& tp);

  /// The token that follows a text, the same on all ranks.
  /// @param number  of the token, from 0.
  Token next_token(std::span<const Token> text, std::int64_t number);

 private:
  Run& run_;
  const PipelinePlan& plan_;
  const std::vector<LocalStage>& stages_;
  Group &pp_, &tp_;
  std::vector<GeneratingPass> passes_;  // one for each stage
  Buffer logits_;                       // those of all tensor-parallel ranks
};

}  // namespace rankwise
