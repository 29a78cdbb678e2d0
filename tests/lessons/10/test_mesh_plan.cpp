// The plan of a rank of lesson 10's mesh: what it stores, updates and sends.

#include <vector>

#include "gpt2/adamw.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/10/mesh_plans.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Number of replicated elements: position embeddings, norms, and the biases that are added after a sum.
std::int64_t common_elements(const ModelConfig& c)
{
  return c.context * c.channels + c.layers * 6 * c.channels + 2 * c.channels;
}

/// V C, with padding, over all parts.
std::int64_t stored_tokens(const ModelConfig& c, std::int64_t tp)
{
  return tp * c.stored_vocabulary(tp) * c.channels;
}

/// nano, in f32: L 4, C 64, V 256, T 64; eight sequences a replica, two at a time.
MeshPlan nano_plan(const Layout& layout, const MeshCoordinates& place, MeshPlanOptions options = {})
{
  options.config = preset("nano");
  return mesh_plan(layout, place, options);
}

constexpr std::int64_t m = 4, n = 2 * 64 * 64;  // micro-batches; B T C of nano_plan()
constexpr Layout cube{.dp = 2, .tp = 2, .pp = 2};

}  // namespace

TEST_CASE(
    "MeshPlan: all ranks together have 8 P bytes of optimizer states, what all parts have and the copies on top")
{
  for (const MeshCase& c : mesh_cases()) {
    INFO(describe(c));
    const auto& [dp, tp, pp, token_runs, uneven] = c.layout;
    const ModelConfig& config = c.options.config;
    std::int64_t bytes = 0;
    for_each_place(c.layout, [&](const MeshCoordinates& place) {
      bytes += adamw_bytes(elements_of(mesh_plan(c.layout, place, c.options).updated()), DType::f32);
    });
    const std::int64_t padding = stored_tokens(config, tp) - config.vocabulary * config.channels;
    const std::int64_t copies = pp > 1 ? stored_tokens(config, tp) : 0;
    const std::int64_t once = config.parameters() + padding + (tp - 1) * common_elements(config) + copies;
    CHECK(bytes == 8 * once * (c.options.zero ? 1 : dp));
  }
}

TEST_CASE("MeshPlan: stages divide a tensor-parallel rank's table, and replicas each range, without gaps")
{
  for (const MeshCase& c : mesh_cases()) {
    INFO(describe(c));
    const auto& [dp, tp, pp, token_runs, uneven] = c.layout;
    std::int64_t all = 0;
    for (int stage = 0; stage < pp; ++stage) {
      const std::vector<Range> ranges = mesh_plan(c.layout, {.pp = stage}, c.options).ranges();
      all += elements_of(ranges);
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        std::int64_t next = ranges[i].first;
        for (int replica = 0; replica < dp; ++replica) {
          const MeshPlan plan = mesh_plan(c.layout, {.dp = replica, .pp = stage}, c.options);
          const Range mine = plan.updated()[i];
          CHECK(mine == plan.updated(ranges[i]));
          if (!c.options.zero) {
            CHECK(mine == ranges[i]);
            continue;
          }
          CHECK(mine.first == next);
          CHECK(mine.count >= ranges[i].count / dp);
          next = mine.end();
        }
        CHECK(next == (c.options.zero ? ranges[i].end() : ranges[i].first));
      }
    }
    const std::int64_t copy = pp > 1 ? stored_tokens(c.options.config, tp) / tp : 0;
    CHECK(all == ParameterTable(c.options.config, {0, static_cast<int>(tp)}).elements() + copy);
  }
}

TEST_CASE("MeshPlan::to_parts: a sum for the embedding, four a block, one for the head and three numbers a token")
{
  // By ring a sum between two sends as many bytes as it has.
  const auto bytes = [](int pp, const MeshPlanOptions& options = {}) {
    return nano_plan(cube, {.pp = pp}, options).to_parts().bytes;
  };
  CHECK(bytes(0) == 4 * m * n * (1 + 4 * 2));
  CHECK(bytes(1) == 4 * m * (n * (4 * 2 + 1) + 3 * 2 * 64));
  CHECK(bytes(0, {.schedule = ScheduleKind::interleaved}) == bytes(0));  // two stages of a block
  CHECK(bytes(0, {.type = DType::bf16}) == bytes(0) / 2);
  CHECK(nano_plan({.dp = 4, .tp = 1, .pp = 2}, {}).to_parts() == Traffic{});
  const MeshPlan four = nano_plan({.dp = 1, .tp = 4, .pp = 2}, {});
  CHECK(four.to_parts().bytes == bytes(0) * 3 / 2);  // 2 (t-1)/t of it
}

TEST_CASE(
    "MeshPlan::to_stages: m B T C elements over each boundary in either direction, 1 / tp of it where rows are "
    "divided")
{
  const auto sent = [](const Layout& layout, int pp, const MeshPlanOptions& options = {}) {
    return nano_plan(layout, {.pp = pp}, options).to_stages();
  };
  CHECK(sent(cube, 0) == Traffic{m, 4 * m * n});
  CHECK(sent(cube, 1) == Traffic{m, 4 * m * n});
  CHECK(sent(cube, 0, {.sequence_parallel = true}) == Traffic{m, 2 * m * n});
  CHECK(sent(cube, 0, {.type = DType::bf16}) == Traffic{m, 2 * m * n});
  const Layout line{.dp = 1, .tp = 1, .pp = 4};
  for (const int inner : {1, 2}) CHECK(sent(line, inner) == Traffic{2 * m, 8 * m * n});
  // Stages 0 and 2 send forwards, stage 2 backwards too.
  CHECK(sent(cube, 0, {.schedule = ScheduleKind::interleaved}) == Traffic{3 * m, 12 * m * n});
  CHECK(sent({.dp = 4, .tp = 2, .pp = 1}, 0) == Traffic{});
}

TEST_CASE("MeshPlan::to_replicas: 2 (dp-1)/dp of a rank's parameters, shared out or not")
{
  for (const Layout& layout : {cube, Layout{.dp = 4, .tp = 1, .pp = 2}, Layout{.dp = 4, .tp = 2, .pp = 1}})
    for (int pp = 0; pp < layout.pp; ++pp)
      for (const bool zero : {false, true}) {
        CAPTURE(layout.dp, layout.tp, layout.pp, pp, zero);
        const MeshPlan plan = nano_plan(layout, {.pp = pp}, {.zero = zero});
        const std::int64_t elements = elements_of(plan.ranges());
        REQUIRE(elements % layout.dp == 0);
        CHECK(plan.to_replicas().bytes == 4 * 2 * (layout.dp - 1) * elements / layout.dp);
      }
  CHECK(nano_plan({.dp = 1, .tp = 4, .pp = 2}, {}).to_replicas() == Traffic{});
}

TEST_CASE(
    "MeshPlan::to_replicas: in bf16 parameters are half as long; a tied gradient that is kept separately is one "
    "sum "
    "more")
{
  const Layout layout{.dp = 2, .tp = 2, .pp = 1};
  const std::int64_t elements = elements_of(nano_plan(layout, {}).ranges());
  CHECK(nano_plan(layout, {}, {.type = DType::bf16}).to_replicas().bytes == (4 + 2) * elements / 2);
  const std::int64_t sum_of_tied = 4 * (256 / 2) * 64 / 2;  // half of V C / tp is sent
  CHECK(nano_plan(layout, {}, {.sums = Sums::exact}).to_replicas().bytes == 4 * elements + sum_of_tied);
  CHECK(nano_plan(cube, {}, {.sums = Sums::exact}).to_replicas() == nano_plan(cube, {}).to_replicas());
}

TEST_CASE("MeshPlan::to_other_end: what both ends update of the token embedding, nothing between them")
{
  const auto bytes = [](const Layout& layout, int pp, bool zero = true) {
    return nano_plan(layout, {.pp = pp}, {.zero = zero}).to_other_end().bytes;
  };
  constexpr std::int64_t token = 4 * 256 * 64;
  CHECK(bytes(cube, 0) == token / 4);  // of one part, and of it what one replica updates
  CHECK(bytes(cube, 1) == token / 4);
  CHECK(bytes(cube, 0, false) == token / 2);
  const Layout line{.dp = 1, .tp = 1, .pp = 4};
  for (const int end : {0, 3}) CHECK(bytes(line, end) == token);
  for (const int inner : {1, 2}) CHECK(bytes(line, inner) == 0);
  CHECK(bytes({.dp = 4, .tp = 2, .pp = 1}, 0) == 0);
}

TEST_CASE("MeshPlan::line: the ranks of each axis, and the two ends of the pipeline")
{
  using Ranks = std::vector<int>;
  const MeshPlan six = nano_plan(cube, place_of(cube, 6));
  CHECK(six.line("tp") == Ranks{6, 7});
  CHECK(six.line("dp") == Ranks{4, 6});
  CHECK(six.line("pp") == Ranks{2, 6});
  CHECK(six.line("tied") == Ranks{2, 6});
  const Layout line{.dp = 1, .tp = 2, .pp = 4};
  const MeshPlan middle = nano_plan(line, place_of(line, 3));
  CHECK(middle.line("pp") == Ranks{1, 3, 5, 7});
  CHECK(middle.line("tied") == Ranks{1, 7});
}

TEST_CASE("MeshPlan::topology: the nodes of the ranks of a line, whichever of the job they are")
{
  using Nodes = std::vector<int>;
  const Topology six_and_two = topology_of({0, 0, 0, 0, 0, 0, 6, 6}, 0), fours = one_machine(8, 4);
  const auto nodes = [](const Topology& job, int rank, const char* axis) {
    return nano_plan(cube, place_of(cube, rank), {.job = job}).topology(axis).node_of;
  };
  CHECK(nodes(six_and_two, 0, "dp") == Nodes{0, 0});
  CHECK(nodes(six_and_two, 4, "dp") == Nodes{0, 1});
  CHECK(nodes(six_and_two, 6, "tp") == Nodes{0, 0});
  CHECK(nodes(fours, 6, "dp") == Nodes{0, 0});
  CHECK(nodes(fours, 6, "pp") == Nodes{0, 1});
  CHECK(nodes(fours, 6, "tied") == Nodes{0, 1});
}

TEST_CASE("MeshPlan: each rank's own lines decide what it sends and keeps")
{
  // Of the dp lines 0 2, 1 3, 4 6 and 5 7 the first two are on one machine, so that auto reads shared memory there.
  const Topology job = topology_of({0, 0, 0, 0, 0, 0, 6, 6}, 0);
  const auto plan = [&](int rank) {
    return nano_plan(cube, place_of(cube, rank), {.algorithm = Algorithm::automatic, .job = job});
  };
  for (const int rank : {0, 1, 2, 3}) {
    CHECK(plan(rank).to_replicas().bytes == 0);
    CHECK(plan(rank).to_replicas().read_bytes > 0);
  }
  for (const int rank : {4, 5, 6, 7}) {
    CHECK(plan(rank).to_replicas().bytes > 0);
    CHECK(plan(rank).to_replicas().read_bytes == 0);
    CHECK(plan(rank).message_bytes() > plan(rank - 4).message_bytes());
  }
}
