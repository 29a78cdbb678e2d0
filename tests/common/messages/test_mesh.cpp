#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/messages/mesh.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/common/messages/axes.hpp"
#include "tests/one_machine.hpp"

using namespace rankwise;
using namespace rankwise::testing;

TEST_CASE("Mesh: each group holds the ranks that differ in its coordinate only, in order")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  for_each_mesh(N, 3, [&](const std::vector<Axis>& sizes) {
    const int pp = sizes[0].size, dp = sizes[1].size, tp = sizes[2].size;
    const std::vector<Axis> axes{{"pp", pp}, {"dp", dp}, {"tp", tp}};
    Mesh mesh(world(), axes, test.setup);
    INFO(fmt::format("pp {} dp {} tp {}", pp, dp, tp));
    const std::vector<int> own = coordinates_of(axes, r);
    REQUIRE(own == std::vector<int>{r / (tp * dp), r / tp % dp, r % tp});
    for (std::size_t a = 0; a < axes.size(); ++a) {
      Group& group = mesh.group(axes[a].name);
      REQUIRE(group.name() == axes[a].name);
      REQUIRE(group.rank() == own[a]);
      std::vector<std::int32_t> members(static_cast<std::size_t>(group.ranks()));
      members[static_cast<std::size_t>(group.rank())] = r;
      all_gather(Tensor(std::span<std::int32_t>(members), {group.ranks()}), group);
      for (int m = 0; m < group.ranks(); ++m) {
        std::vector<int> expected = own;
        expected[a] = m;
        REQUIRE(coordinates_of(axes, members[static_cast<std::size_t>(m)]) == expected);
      }
    }
  });
}

TEST_CASE("Mesh: a sum along an axis counts its ranks, and the traffic is counted under its name")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks();
  if (N % 2 != 0) return;
  Mesh mesh(world(), {{"dp", N / 2}, {"tp", 2}}, test.setup);
  std::int64_t count = 1;
  all_reduce_sum(count, mesh.group("dp"));
  REQUIRE(count == N / 2);
  REQUIRE(test.traffic.of("tp") == Traffic{});
  all_reduce_sum(count, mesh.group("tp"));
  REQUIRE(count == N);
  REQUIRE(test.traffic.of("tp").bytes == 8);
  all_reduce_sum(count, mesh.world());
  REQUIRE(count == N * N);
}

TEST_CASE("Mesh: the table says where each rank runs, the same on all ranks")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks();
  const Mesh mesh(world(), {{"dp", N}}, test.setup);
  std::string table = mesh.table();
  REQUIRE_THAT(table, Contains("rank") && Contains("host") && Contains("cores") && Contains("dp"));
  REQUIRE(std::count(table.begin(), table.end(), '\n') == N);

  std::vector<std::uint8_t> text(table.begin(), table.end()), first = text;
  broadcast(Tensor(std::span<std::uint8_t>(first), {static_cast<std::int64_t>(first.size())}), 0, test.group);
  REQUIRE(text == first);
}

TEST_CASE("Mesh: the table names the ranks of each rank's groups")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks();
  const int tp = N % 2 == 0 ? 2 : 1;
  const Mesh mesh(world(), {{"dp", N / tp}, {"tp", tp}}, test.setup);
  std::istringstream lines(mesh.table());
  std::string line;
  std::getline(lines, line);
  REQUIRE_THAT(line, EndsWith("     dp     tp  groups"));
  for (int r = 0; r < N; ++r) {
    std::getline(lines, line);
    std::vector<int> replicas, parts;
    for (int other = 0; other < N; ++other) {
      if (other % tp == r % tp) replicas.push_back(other);
      if (other / tp == r / tp) parts.push_back(other);
    }
    REQUIRE_THAT(line, StartsWith(fmt::format("{:>4}  ", r)));
    REQUIRE_THAT(line, EndsWith(fmt::format("  {:>5}  {:>5}  dp: {}; tp: {}", r / tp, r % tp,
                                            fmt::join(replicas, " "), fmt::join(parts, " "))));
  }
}

TEST_CASE("check_mesh: sizes that do not make up the ranks are refused")
{
  REQUIRE_NOTHROW(check_mesh({{"dp", 2}, {"tp", 2}}, 4));
  REQUIRE_THROWS_WITH(check_mesh({{"dp", 2}, {"tp", 3}}, 4),
                      Contains("--dp=2 times --tp=3 make 6 ranks, but 4 were started") && Contains("mpirun -np 6"));
  REQUIRE_THROWS_WITH(check_mesh({{"dp", 65536}, {"tp", 65536}}, 4), Contains("make 4294967296 ranks"));
  REQUIRE_THROWS_WITH(check_mesh({{"dp", 0}}, 1), Contains("--dp=0 is not a number of ranks"));
}

TEST_CASE("topology_of_job: ranks of one machine are one node, or as many as are asked for")
{
  const int N = world().ranks();
  const Topology machines = topology_of_job(0);
  REQUIRE(machines.nodes == 1);  // the tests run on one machine
  REQUIRE(machines.ranks_per_node() == N);
  const Topology pairs = topology_of_job(2);
  REQUIRE(pairs.nodes == (N + 1) / 2);
  REQUIRE(pairs.ranks_per_node() == (N == 1 ? 1 : N % 2 == 0 ? 2 : 0));
  for (int r = 0; r < N; ++r) REQUIRE(pairs.node_of[static_cast<std::size_t>(r)] == r / 2);
  REQUIRE(pairs.ranks_of(0).size() == static_cast<std::size_t>(std::min(N, 2)));
}

TEST_CASE("topology_of: machines of any size, ranks in any order, whole machines or parts of them")
{
  using Nodes = std::vector<int>;
  const auto nodes = [](const Nodes& machine_of, int ranks_per_node) {
    return topology_of(machine_of, ranks_per_node).node_of;
  };
  CHECK(nodes({0, 0, 2}, 0) == Nodes{0, 0, 1});
  CHECK(nodes({0, 1, 0, 1}, 0) == Nodes{0, 1, 0, 1});
  CHECK(nodes({0, 0, 2}, 1) == Nodes{0, 1, 2});
  CHECK(nodes({0, 0, 0, 3, 3}, 2) == Nodes{0, 0, 1, 2, 2});  // a part never has ranks of two machines
  CHECK(nodes({0, 1, 0, 1, 0}, 2) == Nodes{0, 1, 0, 1, 2});
  CHECK(topology_of({0, 0, 2}, 0).nodes == 2);
  CHECK(topology_of({0, 0, 2}, 0).ranks_per_node() == 0);
  CHECK(topology_of({0, 0, 2}, 1).ranks_per_node() == 1);
}

TEST_CASE("Topology::among: the nodes of some ranks, in the order of these")
{
  using Nodes = std::vector<int>;
  const Topology job = topology_of({0, 0, 0, 3, 3, 3}, 2, DeviceKind::cuda);  // nodes 0 0 1 2 2 3
  CHECK(job.among({0, 1, 2, 3, 4, 5}).node_of == job.node_of);
  CHECK(job.among({3, 4}).node_of == Nodes{0, 0});
  CHECK(job.among({0, 2, 4}).node_of == Nodes{0, 1, 2});
  CHECK(job.among({4, 1, 0}).node_of == Nodes{0, 1, 1});
  CHECK(job.among({4, 1, 0}).nodes == 2);
  CHECK(job.among({4}).device == DeviceKind::cuda);
}

TEST_CASE("Mesh: groups and formulas use the same nodes")
{
  const int N = world().ranks();
  for (const int ranks_per_node : {0, 1, 2, 3}) {
    GroupForTest test(Algorithm::ring, ranks_per_node);
    for_each_mesh(N, 2, [&](const std::vector<Axis>& axes) {
      Mesh mesh(world(), axes, test.setup);
      const Topology job = topology_of_job(ranks_per_node);
      REQUIRE(mesh.world().topology().node_of == job.node_of);
      for (const Axis& axis : axes) {
        const Topology line = job.among(line_of(axes, world().rank(), axis.name));
        REQUIRE(mesh.group(axis.name).topology().node_of == line.node_of);
      }
    });
  }
}

TEST_CASE("check_algorithm: lines of a mesh that meet the nodes unevenly are refused for two levels only")
{
  const std::vector<Axis> six{{"dp", 3}, {"tp", 2}}, turned{{"dp", 2}, {"tp", 3}};
  const Topology two = topology_of({0, 0, 0, 3, 3, 3}, 0);
  REQUIRE_NOTHROW(check_algorithm(Algorithm::hierarchical, two, turned));
  REQUIRE_NOTHROW(check_algorithm(Algorithm::automatic, two, six));
  REQUIRE_THROWS_WITH(check_algorithm(Algorithm::hierarchical, two, six),
                      Contains("the nodes have different numbers of the ranks along dp (0 2 4)"));
  REQUIRE_THROWS_WITH(check_algorithm(Algorithm::hierarchical, topology_of({0, 0, 2}, 0), {{"dp", 3}}),
                      Contains("same number of ranks"));
  REQUIRE_THROWS_WITH(check_algorithm(Algorithm::shared, two, turned), Contains("the ranks are on 2 nodes"));
}

TEST_CASE("check_algorithm: shared memory across nodes and uneven nodes are refused")
{
  const Topology even{{0, 0, 1, 1}, 2}, uneven{{0, 0, 1}, 2}, one{{0, 0, 0}, 1};
  REQUIRE_NOTHROW(check_algorithm(Algorithm::hierarchical, even));
  REQUIRE_NOTHROW(check_algorithm(Algorithm::shared, one));
  REQUIRE_NOTHROW(check_algorithm(Algorithm::ring, uneven));
  REQUIRE_NOTHROW(check_algorithm(Algorithm::automatic, uneven));
  REQUIRE_THROWS_WITH(check_algorithm(Algorithm::shared, even), Contains("the ranks are on 2 nodes"));
  REQUIRE_THROWS_WITH(check_algorithm(Algorithm::hierarchical, uneven), Contains("same number of ranks"));
}

TEST_CASE("chosen_algorithm: auto goes by topology and size")
{
  const auto choice = [](const Topology& topology, std::int64_t bytes) {
    return chosen_algorithm(Algorithm::automatic, topology, "all-reduce", bytes);
  };
  REQUIRE(choice(one_machine(4), 1 << 10) == Algorithm::shared);
  REQUIRE(choice(one_machine(4, 2), 1 << 10) == Algorithm::halving);
  REQUIRE(choice(one_machine(4, 2), 1 << 20) == Algorithm::hierarchical);
  REQUIRE(choice(one_machine(5, 2), 1 << 20) == Algorithm::ring);  // nodes of different size
  REQUIRE(choice(one_machine(4, 1), 1 << 20) == Algorithm::ring);
  REQUIRE(chosen_algorithm(Algorithm::tree, one_machine(4, 1), "all-reduce", 1 << 20) == Algorithm::tree);
  if (world().ranks() < 4) return;
  GroupForTest machine(Algorithm::automatic), nodes(Algorithm::automatic, 2);
  REQUIRE_THAT(describe_algorithm(machine.group), Contains("auto: shared"));
  REQUIRE_THAT(describe_algorithm(nodes.group), Contains("auto: halving below 65536 bytes"));
}
