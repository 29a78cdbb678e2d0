#pragma once

#include <cstdint>
#include <span>

#include "data/tokenizer.hpp"

/// @file
/// The choice of the next token.

namespace rankwise {

/// Drawing of a token from a row of logits.
struct SamplingOptions {
  double temperature = 1;  ///< divisor of the logits; 0: always the most likely token
  std::int64_t top_k = 0;  ///< only the k most likely tokens may be drawn; 0: all
  std::uint32_t seed = 0;  ///< seed of the run
  double top_p = 1;        ///< only the fewest tokens with at least this probability together; 1: all
};

/// Draws a token with the probabilities softmax(logits / temperature).
/// @param logits   (V), without padding.
/// @param options  temperature, top-k, top-p and seed. Top-p applies to the probabilities that top-k leaves.
/// @param number   index of the token in the sample; the same number, seed and logits give the same token.
/// @source  top-k: Fan, Lewis and Dauphin 2018, section 5.4; top-p: Holtzman et al. 2020, section 3.1.
Token pick_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t number);

}  // namespace rankwise
