#include "lessons/parallel/zero/received_shards.hpp"

#include <algorithm>

#include "common/collectives/collectives.hpp"

namespace rankwise {

namespace {

/// Elements of the largest shard, of those that are in @p range.
std::int64_t largest(const std::vector<Range>& own, Range range)
{
  std::int64_t most = 0;
  for (const Range& shard : own) most = std::max(most, intersect(shard, range).count);
  return most;
}

}  // namespace

ReceivedShards::ReceivedShards(const DeviceMemory& memory, const GradientLayout& all, const std::vector<Range>& own,
                               std::int64_t ranks)
    : own_(own), tied_(all.tied), ranks_(ranks)
{
  if (ranks == 1) return;
  flat_ = Buffer(memory, further_sums, all.type, {ranks * largest(own, {0, all.elements})}, "shards of all ranks");
  tied_gradients_ =
      Buffer(memory, further_sums, all.type, {ranks * largest(own, all.tied)}, "their tied gradients");
}

void ReceivedShards::receive(std::size_t shard, const std::vector<Tensor>& gradients, Group& group)
{
  const Partition shards(gradients[0].elements(), group.ranks());
  const std::int64_t bucket = own_[shard].first - shards.shard(group.rank()).first;  // its first element
  const auto exchange = [&](const Tensor& sent, Range elements, const Buffer& arrives) {
    std::vector<std::int64_t> to;
    for (int q = 0; q < group.ranks(); ++q) {
      const Range of_rank = shards.shard(q);
      to.push_back(intersect({bucket + of_rank.first, of_rank.count}, elements).count);
    }
    const std::int64_t own = to[static_cast<std::size_t>(group.rank())];
    const std::vector<std::int64_t> from_each(to.size(), own);
    all_to_all_v(sent, to, arrives.tensor().slice({0, ranks_ * own}), from_each, group);
  };
  exchange(gradients[0], {bucket, gradients[0].elements()}, flat_);
  if (gradients.size() > 1) exchange(gradients[1], tied_, tied_gradients_);
}

std::vector<Tensor> ReceivedShards::from(std::int64_t rank, std::size_t shard) const
{
  const std::int64_t elements = own_[shard].count, tied = intersect(own_[shard], tied_).count;
  std::vector<Tensor> gradients{flat_.tensor().slice({rank * elements, elements})};
  if (tied > 0) gradients.push_back(tied_gradients_.tensor().slice({rank * tied, tied}));
  return gradients;
}

std::int64_t ReceivedShards::bytes(const GradientLayout& all, const std::vector<Range>& own, std::int64_t ranks)
{
  if (ranks == 1) return 0;
  return ranks * bytes_of(all.type) * (largest(own, {0, all.elements}) + largest(own, all.tied));
}

}  // namespace rankwise
