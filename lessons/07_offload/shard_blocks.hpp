#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/partition.hpp"

/// @file
/// What one rank owns, in pieces that come and go one by one.

namespace rankwise {

/// The elements of a rank's shards in blocks of at most 2^18. No block belongs to two shards, and none lies in a tied
/// tensor only in part.
///
///     shards   [ head ][ units 7-8     ][ units 5-6     ] ...      [ embedding       ]
///     blocks     [  0   ][  1   ][  2    ][  3   ][  4    ] ...      [ tied ][ tied ][ ]
class ShardBlocks {
 public:
  /// @param shards  of a flat vector, in order.
  /// @param tied      of the same vector, where a second gradient is added to the first; may be empty.
  ShardBlocks(const std::vector<Range>& bucket_shards, Range tied);

  /// Number of blocks.
  std::size_t count() const { return blocks_.size(); }
  /// The elements of a block, of the flat vector.
  Range operator[](std::size_t block) const { return blocks_[block]; }
  /// Whether a block lies in the tied tensor.
  bool is_tied(std::size_t block) const { return !intersect(blocks_[block], tied_).empty(); }
  /// The numbers of a shard's blocks.
  Range of_shard(std::size_t shard) const { return of_shards_[shard]; }
  /// The elements of all blocks together.
  std::int64_t elements() const { return elements_; }
  /// Those of them that lie in the tied tensor.
  std::int64_t tied_elements() const { return tied_elements_; }
  /// The elements of the largest block.
  std::int64_t largest() const { return largest_; }

 private:
  Range tied_;
  std::vector<Range> blocks_, of_shards_;
  std::int64_t elements_ = 0, tied_elements_ = 0, largest_ = 0;
};

}  // namespace rankwise
