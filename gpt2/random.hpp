#pragma once

#include <cstdint>

#include "common/base/philox.hpp"

/// @file
/// Random numbers of a GPT-2, keyed by their purpose and position: the same on every layout of devices.

namespace rankwise {

/// Use of a random number.
enum class Purpose : std::uint32_t {
  embedding_dropout,  ///< dropout on the sum of token and position embedding
  attention_dropout,  ///< dropout on the attention weights; the channel is the key's token
  residual_dropout,   ///< dropout on a branch's output
  initial_value,      ///< initial value of a parameter
  sampling,           ///< choice of a generated token
};

/// Position in training at which a number is used. It has no rank on purpose: the numbers do not depend on the
/// layout.
struct Position {
  std::int64_t step = 0;      ///< optimizer step
  std::int64_t sequence = 0;  ///< index in the global batch
  std::int64_t token = 0;     ///< index in the sequence
  std::int64_t layer = 0;     ///< unit of the parameter table
  std::int64_t head = 0;      ///< head of the whole model
  std::int64_t channel = 0;   ///< channel of the whole residual stream, or the key's token
};

/// The random words of the four channels 4k .. 4k+3 with k = @p at.channel / 4.
/// @param seed     seed of the run.
/// @param purpose  use of the numbers.
/// @param at       each number fits in 32 bits, layer in 14 and head in 15, as check_config() ensures.
constexpr PhiloxWords random_words(std::uint32_t seed, Purpose purpose, const Position& at)
{
  const auto word = [](std::int64_t i) { return static_cast<std::uint32_t>(i); };
  return philox({word(at.channel / 4), word(at.token), word(at.sequence), word(at.step)},
                {seed, static_cast<std::uint32_t>(purpose) << 29 | word(at.layer) << 15 | word(at.head)});
}

/// The standard normal number that gives the initial value of element @p element of tensor number @p tensor.
inline double initial_normal(std::uint32_t seed, int tensor, std::int64_t element)
{
  const auto pair = static_cast<std::uint64_t>(element) / 2;
  const PhiloxWords words = philox({static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32),
                                    static_cast<std::uint32_t>(tensor), 0},
                                   {seed, static_cast<std::uint32_t>(Purpose::initial_value) << 29});
  return element % 2 == 0 ? normal(words[0], words[1]) : normal(words[2], words[3]);
}

}  // namespace rankwise
