// The degrees and coordinates of lesson 13's mesh, and what its ranks hold alike.

#include <array>
#include <vector>

#include "lessons/13_mesh_zero3/tiered_shards.hpp"
#include "lessons/parallel/mesh/mesh_zero3_options.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

using Degrees = std::array<int, 3>;  // replicas, shard, tp

Degrees degrees(int N, int dp, int tp, int shard_ranks)
{
  MeshZeroOptions options;
  options.dp = dp;
  options.tp = tp;
  options.shard_ranks = shard_ranks;
  const std::vector<Axis> axes = options.axes(N);
  return {axes[0].size, axes[1].size, axes[2].size};
}

}  // namespace

TEST_CASE("MeshZeroOptions: degrees that are not given")
{
  CHECK(degrees(1, 0, 0, 0) == Degrees{1, 1, 1});
  CHECK(degrees(3, 0, 0, 0) == Degrees{1, 3, 1});
  CHECK(degrees(8, 0, 0, 0) == Degrees{1, 4, 2});
  CHECK(degrees(8, 0, 4, 0) == Degrees{1, 2, 4});
  CHECK(degrees(8, 8, 0, 0) == Degrees{1, 8, 1});
  CHECK(degrees(8, 0, 1, 2) == Degrees{4, 2, 1});
  CHECK(degrees(8, 0, 0, 2) == Degrees{2, 2, 2});
  CHECK(degrees(8, 0, 0, 1) == Degrees{4, 1, 2});
}

TEST_CASE("sharding_place: tensor-parallel ranks are neighbours, then those that share a replica")
{
  const std::vector<Axis> axes{{"replicas", 2}, {"shard", 2}, {"tp", 2}};
  const std::vector<Degrees> expected{{0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 1, 1},
                                      {1, 0, 0}, {1, 0, 1}, {1, 1, 0}, {1, 1, 1}};
  for (int rank = 0; rank < 8; ++rank) {
    const ShardingPlace place = sharding_place(axes, rank);
    CHECK(Degrees{place.replicas.rank, place.shard.rank, place.tp.rank} ==
          expected[static_cast<std::size_t>(rank)]);
    CHECK(place.data().rank == rank / 2);
    CHECK(place.data().ranks == 4);
    CHECK(place.part().index == rank % 2);
  }
}

TEST_CASE("undivided_elements: of positions, norms and the biases after a sum")
{
  const ModelConfig config = tiny_config(2, 4, 32, 6);
  const ParameterTable table(config, {1, 2});
  const std::int64_t all = 6 * 32 + 2 * (4 + 2) * 32 + 2 * 32;
  CHECK(elements_of(undivided_elements(table, {{0, table.elements()}})) == all);
  const std::int64_t half = table.elements() / 2;
  CHECK(elements_of(undivided_elements(table, {{0, half}})) +
            elements_of(undivided_elements(table, {{half, table.elements() - half}})) ==
        all);
}

TEST_CASE("MeshZeroOptions: with --zero=2 no unit is gathered in a micro-batch")
{
  MeshZeroOptions options;
  CHECK(options.gather_options().reshard == Reshard::after_forward);
  options.zero = 2;
  CHECK(options.gather_options().reshard == Reshard::never);
}
