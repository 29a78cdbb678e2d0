#pragma once

#include <cstdint>
#include <vector>

#include "gpt2/kernels/exact/sum_tiles.hpp"
#include "gpt2/kernels/sum_order.hpp"

/// @file
/// A contraction in segments, so that the factors of a segment stay in a cache.

namespace rankwise {

/// Terms of a contraction that follow each other in its order.
struct Segment {
  std::vector<Range> terms;       ///< of the contraction
  std::vector<LeafPiece> pieces;  ///< of the leaves that they belong to
  std::int64_t count = 0;         ///< number of terms
  int waiting = 0;                ///< number of sums that wait in places for the next segment
};

/// Cuts the terms of @p order into segments of about the same length, @p most terms or fewer. There is one at least.
std::vector<Segment> segments_of(const SumOrder& order, std::int64_t most);

}  // namespace rankwise
