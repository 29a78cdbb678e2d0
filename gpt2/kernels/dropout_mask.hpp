#pragma once

#include <array>
#include <cstdint>

#include "gpt2/kernels/kernels.hpp"

/// @file
/// The factors of a dropout mask, on the host and on a GPU.

namespace rankwise {

/// The factors of the elements of a dropout layer: 0, or 1 / (1 - rate).
class DropoutMask {
 public:
  /// @param dropout  rate and key of the mask; every element is kept when the rate is 0.
  constexpr explicit DropoutMask(const Dropout& dropout)
      : dropout_(dropout),
        threshold_(static_cast<std::uint32_t>(dropout.rate * 0x1p32)),
        kept_(1 / (1 - dropout.rate))
  {
  }

  /// The factors of channels 4k .. 4k+3 with k = @p channel / 4.
  constexpr std::array<double, 4> factors(std::int64_t sequence, std::int64_t token, std::int64_t head,
                                          std::int64_t channel) const
  {
    const PhiloxWords words = random_words(dropout_.seed, dropout_.purpose,
                                           {.step = dropout_.step,
                                            .sequence = dropout_.rows.sequences.first + sequence,
                                            .token = dropout_.rows.tokens.first + token,
                                            .layer = dropout_.layer,
                                            .head = head,
                                            .channel = channel});
    std::array<double, 4> factors{};
    for (std::size_t i = 0; i < 4; ++i) factors[i] = words[i] < threshold_ ? 0 : kept_;
    return factors;
  }

  /// The factor of one element of row @p row of (R, C).
  constexpr double factor(std::int64_t row, std::int64_t channel) const
  {
    if (!dropout_.active()) return 1;
    const std::int64_t T = dropout_.rows.tokens.count;
    return factors(row / T, row % T, 0, channel)[static_cast<std::size_t>(channel % 4)];
  }

 private:
  Dropout dropout_;
  std::uint32_t threshold_;  // words below it are dropped
  double kept_;
};

}  // namespace rankwise
