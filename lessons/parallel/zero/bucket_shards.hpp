#pragma once

#include <cstdint>
#include <vector>

#include "common/base/partition.hpp"
#include "lessons/parallel/zero/buckets.hpp"

/// @file
/// Ownership of parameters: every element of a model belongs to one rank.

namespace rankwise {

/// Elements of a table's flat vector that one rank owns.
struct BucketShard {
  Range elements;  ///< contiguous; may begin and end in the middle of a tensor
  int owner = 0;   ///< rank, 0 <= owner < N
};

/// Divides every bucket into N shards, as reduce_scatter_sum() and all_gather() do: shard r of
/// Partition(bucket.elements.count, N) belongs to rank r. The result is in the order of the buckets, and by rank
/// within each bucket. If a bucket has fewer elements than there are ranks, its last shards are empty.
///
///     nano, 200 kB, N = 2    bucket 3       bucket 2                   bucket 1                  bucket 0
///     units                  [embedding]    [h.0.attn .. h.1.attn]     [h.1.mlp .. h.2.mlp]      [h.3.attn .. head]
///     owner                  [0000][1111]   [0000000000][1111111111]   [000000000][111111111]    [00000000][1111111]
///
/// @param buckets  result of make_buckets().
/// @param ranks    N >= 1.
std::vector<BucketShard> make_bucket_shards(const std::vector<Bucket>& buckets, int ranks);

/// The shards of one rank, one per bucket, in the order of the buckets.
std::vector<Range> shards_of(int rank, const std::vector<BucketShard>& bucket_shards);

}  // namespace rankwise
