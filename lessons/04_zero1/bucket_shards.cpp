#include "lessons/04_zero1/bucket_shards.hpp"

#include <algorithm>

namespace rankwise {

std::vector<BucketShard> make_bucket_shards(const std::vector<Bucket>& buckets, int ranks)
{
  // BEGIN EXERCISE 04.1 points=10 "The shard map: for each bucket, in the order given, one shard for each rank, by "
  //     "rank. The elements of a bucket are cut as the collectives cut them, by Partition; a shard says where its "
  //     "elements lie in the flat vector of the whole table, and who owns them."
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
