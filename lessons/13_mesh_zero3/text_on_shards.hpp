#pragma once

#include <cstdint>
#include <span>

#include "common/messages/group.hpp"
#include "gpt2/generate.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/offload/offloaded_parameters.hpp"

/// @file
/// Generation of text by ranks that gather units along the data axis and sum along tp.

namespace rankwise {

/// Makes texts, one token after the other. A rank caches the keys and values of its own heads.
class TextOnShards {
 public:
  /// @param run         of the rank.
  /// @param model       a tensor-parallel shard of every layer.
  /// @param parameters  sharded along the data axis.
  /// @param tp          the tensor-parallel ranks. All of them outlive this.
  TextOnShards(Run& run, const Model& model, OffloadedParameters& parameters, Group& tp);

  /// The token that follows a text, the same on all ranks, which make this call together.
  /// @param number  of the token, for its random number.
  Token next_token(std::span<const Token> text, std::int64_t number);

 private:
  Run& run_;
  const Model& model_;
  OffloadedParameters& parameters_;
  Group& tp_;
  GeneratingPass pass_;
};

}  // namespace rankwise
