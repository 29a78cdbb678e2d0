#include "lessons/parallel/zero/shard_sums.hpp"

#include "lessons/parallel/zero/gradient_exchange.hpp"

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
  // BEGIN EXERCISE 05.2
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

ShardSums::ShardSums(const Kernels& kernels, Stream& stream, const DeviceMemory& memory, const StepPlan& plan,
                     const std::vector<Range>& own, std::int64_t ranks)
    : received_(memory, sums_of(plan), own, separate_ranks(plan, ranks))
{
  for (const Range& shard : own)
    sums_.push_back(plan.arithmetic.make_gradient_sum(kernels, stream, memory, layout_of(sums_of(plan), shard)));
}

void ShardSums::reduce_scatter(std::size_t shard, const std::vector<Tensor>& gradients, Group& group)
{
  if (received_.ranks() > 1) return received_.receive(shard, gradients, group);
  reduce_scatter_sum(gradients, group);
}

void ShardSums::add(std::size_t shard, Range sequences, const std::vector<Tensor>& gradients)
{
  GradientSum& sum = *sums_[shard];
  if (sequences.first == 0) sum.clear();
  if (received_.ranks() == 1) return sum.add(sequences, gradients);
  const std::int64_t B = sequences.count / received_.ranks();
  for (std::int64_t q = 0; q < received_.ranks(); ++q)
    sum.add({sequences.first + q * B, B}, received_.from(q, shard));
}

std::vector<Tensor> ShardSums::totals()
{
  std::vector<Tensor> totals;
  for (const std::unique_ptr<GradientSum>& sum : sums_) totals.push_back(sum->total());
  return totals;
}

CategoryBytes ShardSums::bytes(const StepPlan& plan, RankOf rank)
{
  const std::vector<Range> own = owned_shards(plan, rank);
  const GradientLayout all = sums_of(plan);
  const std::int64_t ranks = separate_ranks(plan, rank.ranks);
  CategoryBytes sum;
  for (const Range& shard : own)
    sum += plan.arithmetic.gradient_bytes(layout_of(all, shard), ranks * sums_of_step(plan, rank.ranks));
  sum[further_sums] += ReceivedShards::bytes(all, own, ranks);
  return sum;
}

}  // namespace rankwise
