#include "lessons/05_zero2/shard_sums.hpp"

#include <algorithm>

#include "common/collectives/collectives.hpp"

namespace rankwise {

namespace {

/// Layout of a shard's gradients.
GradientLayout layout_of(const GradientLayout& all, Range shard)
{
  const auto in_shard = [&](Range elements) {
    const Range both = intersect(shard, elements);
    return Range{both.empty() ? 0 : both.first - shard.first, both.count};
  };
  GradientLayout layout{.elements = shard.count, .type = all.type, .tied = in_shard(all.tied)};
  for (const Range& elements : all.frozen) layout.frozen.push_back(in_shard(elements));
  return layout;
}

}  // namespace

Range of_all_ranks(Range own, const Group& group)
{
  return {own.first - group.rank() * own.count, group.ranks() * own.count};
}

std::vector<Range> micro_batches_of_step(const BatchShape& batch, const Group& group)
{
  // BEGIN EXERCISE 05.2 points=10 "Sequences of a rank: the ranks' gradients are summed after each "
  //     "micro-batch. So the first micro-batch of all ranks together takes the first N B sequences of the global "
  //     "batch, in rank order, and the next one the following N B. Return this rank's run of B sequences in each "
  //     "micro-batch."
  std::vector<Range> micro_batches;
  const std::int64_t B = batch.micro_batch;
  for (std::int64_t first = group.rank() * B; first < batch.global_batch; first += group.ranks() * B)
    micro_batches.push_back({first, B});
  return micro_batches;
  // END EXERCISE
}

BatchShape with_padding(const BatchShape& batch, const Group& group)
{
  const std::int64_t together = group.ranks() * batch.micro_batch;
  BatchShape padded = batch;
  padded.global_batch = (batch.global_batch + together - 1) / together * together;
  return padded;
}

namespace {

/// Elements of the largest shard; or of the largest part of the token embedding in a shard.
std::int64_t largest(const std::vector<Range>& own, Range tied)
{
  std::int64_t most = 0;
  for (const Range& shard : own) most = std::max(most, intersect(shard, tied).count);
  return most;
}

}  // namespace

ShardSums::ShardSums(const Arithmetic& arithmetic, const Kernels& kernels, Stream& stream,
                     const DeviceMemory& memory, const GradientLayout& all, const std::vector<Range>& own,
                     std::int64_t ranks)
    : own_(own), tied_(all.tied), ranks_(ranks)
{
  for (const Range& shard : own)
    sums_.push_back(arithmetic.make_gradient_sum(kernels, stream, memory, layout_of(all, shard)));
  if (!adds_rank_by_rank()) return;
  const std::int64_t flat = largest(own, {0, all.elements}), tied = largest(own, all.tied);
  arrived_ = Buffer(memory, further_sums, all.type, {ranks * flat}, "shards of all ranks");
  arrived_tied_ = Buffer(memory, further_sums, all.type, {ranks * tied}, "tied shards of all ranks");
}

Tensor ShardSums::from(std::int64_t q, std::int64_t elements, bool tied) const
{
  return (tied ? arrived_tied_ : arrived_).tensor().slice({q * elements, elements});
}

void ShardSums::receive(std::size_t shard, const std::vector<Tensor>& gradients, Group& group)
{
  const Partition shards(gradients[0].elements(), group.ranks());
  const std::int64_t bucket = own_[shard].first - shards.shard(group.rank()).first;  // its first element
  const auto exchange = [&](const Tensor& sent, Range sent_elements, bool tied) {
    std::vector<std::int64_t> to;
    for (int q = 0; q < group.ranks(); ++q) {
      const Range of_rank = shards.shard(q);
      to.push_back(intersect({bucket + of_rank.first, of_rank.count}, sent_elements).count);
    }
    const std::int64_t own = to[static_cast<std::size_t>(group.rank())];
    const std::vector<std::int64_t> from_each(to.size(), own);
    const Tensor& arrived = (tied ? arrived_tied_ : arrived_).tensor();
    all_to_all_v(sent, to, arrived.slice({0, ranks_ * own}), from_each, group);
  };
  exchange(gradients[0], {bucket, gradients[0].elements()}, false);
  if (gradients.size() > 1) exchange(gradients[1], tied_, true);
}

void ShardSums::add(std::size_t shard, Range sequences, const std::vector<Tensor>& gradients)
{
  GradientSum& sum = *sums_[shard];
  if (sequences.first == 0) sum.clear();
  if (!adds_rank_by_rank()) return sum.add(sequences, gradients);
  const std::int64_t B = sequences.count / ranks_, tied = intersect(own_[shard], tied_).count;
  for (std::int64_t q = 0; q < ranks_; ++q) {
    std::vector<Tensor> of_rank{from(q, own_[shard].count, false)};
    if (tied > 0) of_rank.push_back(from(q, tied, true));
    sum.add({sequences.first + q * B, B}, of_rank);
  }
}

std::vector<Tensor> ShardSums::totals()
{
  std::vector<Tensor> totals;
  for (const std::unique_ptr<GradientSum>& sum : sums_) totals.push_back(sum->total());
  return totals;
}

CategoryBytes ShardSums::bytes(const Arithmetic& arithmetic, const StepPlan& plan, RankOf rank)
{
  const std::vector<Range> own = owned_shards(plan, rank);
  const GradientLayout all = sums_of(plan);
  const std::int64_t ranks = separate_ranks(plan, rank.ranks);
  CategoryBytes sum;
  for (const Range& shard : own)
    sum += arithmetic.gradient_bytes(layout_of(all, shard), ranks * sums_of_step(plan, rank.ranks));
  if (ranks > 1)
    sum[further_sums] += ranks * bytes_of(all.type) * (largest(own, {0, all.elements}) + largest(own, all.tied));
  return sum;
}

}  // namespace rankwise
