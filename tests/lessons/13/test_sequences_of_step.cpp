// The sequences that each rank of lesson 13's mesh takes: sums that are added first are of neighbours.

#include <algorithm>
#include <map>
#include <vector>

#include "lessons/parallel/mesh/sharding_mesh.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// The sequences of a rank, one by one, in the order in which it takes them.
std::vector<std::int64_t> sequences(const BatchShape& batch, const ShardingPlace& place)
{
  std::vector<std::int64_t> all;
  for (const Range& run : sequences_of_step(batch, place))
    for (std::int64_t i = run.first; i < run.end(); ++i) all.push_back(i);
  return all;
}

struct Case {
  int replicas, shards, tp;
  BatchShape batch;
};

const std::vector<Case> cases{{1, 1, 1, {8, 2, 4}},  {1, 4, 1, {16, 2, 4}}, {4, 1, 2, {16, 1, 4}},
                              {2, 2, 2, {16, 2, 4}}, {2, 3, 1, {24, 2, 4}}, {3, 2, 1, {12, 1, 4}}};

ShardingPlace place_at(const Case& c, int replica, int shard, int tp)
{
  return {{replica, c.replicas}, {shard, c.shards}, {tp, c.tp}};
}

}  // namespace

TEST_CASE("sequences_of_step: two replicas of two shards, a sequence at a time")
{
  const BatchShape batch{.global_batch = 8, .micro_batch = 1, .sequence = 4};
  using Sequences = std::vector<std::int64_t>;
  CHECK(sequences(batch, {{0, 2}, {0, 2}, {0, 1}}) == Sequences{0, 4});
  CHECK(sequences(batch, {{0, 2}, {1, 2}, {0, 1}}) == Sequences{1, 5});
  CHECK(sequences(batch, {{1, 2}, {0, 2}, {0, 1}}) == Sequences{2, 6});
  CHECK(sequences(batch, {{1, 2}, {1, 2}, {0, 1}}) == Sequences{3, 7});
}

TEST_CASE("sequences_of_step: data ranks take all sequences, each once, in runs of a micro-batch")
{
  for (const Case& c : cases) {
    std::map<std::int64_t, int> taken;
    for (int r = 0; r < c.replicas; ++r)
      for (int s = 0; s < c.shards; ++s) {
        for (const std::int64_t sequence : sequences(c.batch, place_at(c, r, s, 0))) ++taken[sequence];
        for (const Range& run : sequences_of_step(c.batch, place_at(c, r, s, 0)))
          CHECK(run.count == c.batch.micro_batch);
      }
    CHECK(static_cast<std::int64_t>(taken.size()) == c.batch.global_batch);
    CHECK(std::all_of(taken.begin(), taken.end(), [](const auto& of) { return of.second == 1; }));
  }
}

TEST_CASE("sequences_of_step: tensor-parallel ranks take the same sequences")
{
  for (const Case& c : cases)
    for (int tp = 0; tp < c.tp; ++tp)
      CHECK(sequences(c.batch, place_at(c, 0, 0, tp)) == sequences(c.batch, place_at(c, 0, 0, 0)));
}

TEST_CASE("sequences_of_step: in each micro-batch the ranks of a replica have neighbours, and so have replicas")
{
  for (const Case& c : cases) {
    const std::int64_t B = c.batch.micro_batch;
    const std::size_t M = sequences_of_step(c.batch, place_at(c, 0, 0, 0)).size();
    for (std::size_t m = 0; m < M; ++m)
      for (int r = 0; r < c.replicas; ++r)
        for (int s = 0; s < c.shards; ++s) {
          const std::vector<Range> runs = sequences_of_step(c.batch, place_at(c, r, s, 0));
          REQUIRE(runs.size() == M);
          const Range all = of_all_data_ranks(runs[m], place_at(c, r, s, 0));
          CHECK(all.count == c.replicas * c.shards * B);
          CHECK(all.first == static_cast<std::int64_t>(m) * all.count);  // micro-batches are neighbours, too
          CHECK(runs[m].first == all.first + (r * c.shards + s) * B);
        }
  }
}
