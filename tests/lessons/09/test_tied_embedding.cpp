// The two ends of a pipeline, which have the same token embedding.

#include <string>
#include <vector>

#include "lessons/parallel/pipeline/tied_embedding.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/reported.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Whether this rank is one of the ends.
bool at_end()
{
  return world().rank() == 0 || world().rank() == world().ranks() - 1;
}

/// How check_tied() ends where each rank has two ranges, of which the second is the embedding at the ends.
/// @param of_embedding, of_rest  values of this rank.
bool passes(float of_embedding, float of_rest)
{
  GroupForTest line(Algorithm::ring);
  const std::unique_ptr<Group> ends = group_of_ends(line.group, line.setup);
  const ParameterTable table(tiny_config(1, 1, 8, 4));
  std::vector<float> embedding(64, of_embedding), rest(32, of_rest);
  const auto shard = [&](std::vector<float>& values, Range range) {
    return Shard{table, range, Tensor(std::span<float>(values), {range.count}), {}, {}};
  };
  const std::vector<Range> own{{64, 32}, {at_end() ? 0 : 96, 64}};
  const std::vector<Shard> shards{shard(rest, own[0]), shard(embedding, own[1])};
  return Told(false, [&](Report& report) { check_tied(report, own, shards, *line.stream, ends.get()); }).passes;
}

}  // namespace

TEST_CASE("group_of_ends: the first and the last rank of a line; none if there is only one rank")
{
  GroupForTest line(Algorithm::ring);
  const std::unique_ptr<Group> ends = group_of_ends(line.group, line.setup);
  const int N = world().ranks();
  REQUIRE((ends != nullptr) == (N > 1 && at_end()));
  if (!ends) return;
  CHECK(ends->name() == "tied");
  CHECK(ends->ranks() == 2);
  CHECK(ends->rank() == (world().rank() == 0 ? 0 : 1));
}

TEST_CASE("check_tied: the check fails on all ranks where the ends' embeddings differ, and looks at nothing else")
{
  const auto rank = static_cast<float>(world().rank());
  CHECK(passes(0.5F, rank));
  CHECK(passes(at_end() ? 0.5F : rank, 0));
  CHECK(passes(world().rank() == 0 ? 0.25F : 0.5F, 0) == (world().ranks() == 1));
}
