#include "lessons/parallel/mesh/sharding_mesh.hpp"

#include "lessons/parallel/tensor/split.hpp"

namespace rankwise {

ShardingPlace sharding_place(const std::vector<Axis>& axes, int rank)
{
  const std::vector<int> at = coordinates_of(axes, rank);
  return {.replicas = {at[0], axes[0].size}, .shard = {at[1], axes[1].size}, .tp = {at[2], axes[2].size}};
}

std::vector<Range> sequences_of_step(const BatchShape& batch, const ShardingPlace& place)
{
  // BEGIN EXERCISE 13.1
  std::vector<Range> micro_batches;
  const std::int64_t B = batch.micro_batch;
  const auto [data, d] = place.data();
  // A micro-batch of all data ranks is d B neighbouring sequences, of which data rank k takes the k-th run.
  for (std::int64_t first = data * B; first < batch.global_batch; first += d * B)
    micro_batches.push_back({first, B});
  return micro_batches;
  // END EXERCISE
}

Range of_all_data_ranks(Range own, const ShardingPlace& place)
{
  const auto [data, d] = place.data();
  return {own.first - data * own.count, d * own.count};
}

std::vector<Range> counted_elements(const ParameterTable& table, Part part, const std::vector<Range>& own)
{
  // BEGIN EXERCISE 13.2
  const std::vector<Range> owned = owned_elements(table, part);
  std::vector<Range> counted;
  for (const Range& shard : own)
    for (const Range& elements : owned)
      if (const Range both = intersect(shard, elements); !both.empty()) counted.push_back(both);
  return counted;
  // END EXERCISE
}

}  // namespace rankwise
