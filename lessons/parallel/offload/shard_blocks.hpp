#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/base/partition.hpp"

/// @file
/// The shards of one rank, cut into blocks that are fetched and stored one by one.

namespace rankwise {

/// Elements of a rank's shards in blocks of at most 2^18. A block belongs to one shard, and is either inside or
/// outside of the tied tensor.
///
///     shards     [ head ][ units 7-8     ][ units 5-6     ] ...      [ embedding       ]
///     blocks     [  0   ][  1   ][  2    ][  3   ][  4    ] ...      [ tied ][ tied ][ ]
class ShardBlocks {
 public:
  /// @param bucket_shards  ranges of a flat vector, in order.
  /// @param tied           range of the same vector where a second gradient is added to the first; may be empty.
  ShardBlocks(const std::vector<Range>& bucket_shards, Range tied);

  /// Number of blocks.
  std::size_t count() const { return blocks_.size(); }
  /// Elements of a block, a range of the flat vector.
  Range operator[](std::size_t block) const { return blocks_[block]; }
  /// True if a block is inside the tied tensor.
  bool is_tied(std::size_t block) const { return !intersect(blocks_[block], tied_).empty(); }
  /// Numbers of a shard's blocks.
  std::vector<std::size_t> of_shard(std::size_t shard) const
  {
    std::vector<std::size_t> blocks(first_[shard + 1] - first_[shard]);
    std::iota(blocks.begin(), blocks.end(), first_[shard]);
    return blocks;
  }
  /// Number of elements of all blocks.
  std::int64_t elements() const { return elements_; }
  /// Number of those inside the tied tensor.
  std::int64_t tied_elements() const { return tied_elements_; }
  /// Number of elements of the largest block.
  std::int64_t largest() const { return largest_; }

 private:
  Range tied_;
  std::vector<Range> blocks_;
  std::vector<std::size_t> first_{0};  // number of each shard's first block; and of all blocks
  std::int64_t elements_ = 0, tied_elements_ = 0, largest_ = 0;
};

}  // namespace rankwise
