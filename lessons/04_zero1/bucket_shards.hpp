#pragma once

#include <cstdint>
#include <vector>

#include "common/base/partition.hpp"
#include "lessons/03_ddp/buckets.hpp"

/// @file
/// Who owns what: every element of a model belongs to one rank.

namespace rankwise {

/// Elements of a table's flat vector that one rank owns.
struct BucketShard {
  Range elements;  ///< neighbours; they may begin and end in the middle of a tensor
  int owner = 0;   ///< 0 <= owner < N
};

/// Cuts every bucket into one shard for each of the N ranks, as reduce_scatter_sum() and all_gather() cut its elements:
/// shard r of Partition(bucket.elements.count, N) belongs to rank r. In the order of the buckets, and in each by rank;
/// where a bucket has fewer elements than there are ranks the last shards are empty.
///
///     nano, 200 kB, N = 2    bucket 3             bucket 2       bucket 1       bucket 0
///     units                  [0, 1]               [2, 3]         [4, 5]  ...    [.., head]
///     owner                  [0000000][1111111]   [0000][1111]   [0000][1111]   [0000][1111]
///
/// @param buckets  of make_buckets().
/// @param ranks    N >= 1.
std::vector<BucketShard> make_bucket_shards(const std::vector<Bucket>& buckets, int ranks);

/// The shards of one rank, a bucket's each, in the order of the buckets.
std::vector<Range> shards_of(int rank, const std::vector<BucketShard>& bucket_shards);

}  // namespace rankwise
