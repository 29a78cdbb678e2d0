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

  /// Number of sums that wait in places before its terms are added.
  int waiting_before() const { return pieces.front().place + (pieces.front().starts ? 0 : 1); }
  /// Number of sums that wait then, for the next segment.
  int waiting_after() const { return pieces.back().place - pieces.back().merges + 1; }
};

/// Cuts the terms of @p order into segments of about the same length, @p most terms or fewer. There is one at least.
std::vector<Segment> segments_of(const SumOrder& order, std::int64_t most);

}  // namespace rankwise
