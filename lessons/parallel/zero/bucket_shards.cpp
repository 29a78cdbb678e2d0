#include "lessons/parallel/zero/bucket_shards.hpp"

#include <algorithm>

namespace rankwise {

std::vector<BucketShard> make_bucket_shards(const std::vector<Bucket>& buckets, int ranks)
{
  // BEGIN EXERCISE 04.1
  std::vector<BucketShard> bucket_shards;
  for (const Bucket& bucket : buckets) {
    const Partition parts(bucket.elements.count, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const Range part = parts.shard(rank);
      bucket_shards.push_back({{bucket.elements.first + part.first, part.count}, rank});
    }
  }
  return bucket_shards;
  // END EXERCISE
}

std::vector<Range> shards_of(int rank, const std::vector<BucketShard>& bucket_shards)
{
  std::vector<Range> own;
  for (const BucketShard& shard : bucket_shards)
    if (shard.owner == rank) own.push_back(shard.elements);
  return own;
}

}  // namespace rankwise
