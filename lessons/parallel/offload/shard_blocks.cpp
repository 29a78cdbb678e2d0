#include "lessons/parallel/offload/shard_blocks.hpp"

#include <algorithm>

namespace rankwise {

ShardBlocks::ShardBlocks(const std::vector<Range>& bucket_shards, Range tied) : tied_(tied)
{
  constexpr std::int64_t most = 1 << 18;
  for (const Range& shard : bucket_shards) {
    for (std::int64_t at = shard.first; at < shard.end(); at += blocks_.back().count) {
      std::int64_t end = std::min(at + most, shard.end());
      for (const std::int64_t border : {tied.first, tied.end()})
        if (at < border && border < end) end = border;
      blocks_.push_back({at, end - at});
    }
    first_.push_back(blocks_.size());
  }
  for (const Range& block : blocks_) {
    elements_ += block.count;
    tied_elements_ += intersect(block, tied).count;
    largest_ = std::max(largest_, block.count);
  }
}

}  // namespace rankwise
