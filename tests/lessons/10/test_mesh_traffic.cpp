// Bytes by sender and receiver in lesson 10.

#include <vector>

#include "lessons/10_3d_parallel/mesh_traffic.hpp"
#include "tests/catch.hpp"
#include "tests/reported.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

using Sizes = std::vector<std::int64_t>;

/// The report of receivers, and its status.
Told told(const Sizes& sent, const std::vector<int>& peers)
{
  return Told(false, [&](Report& report) { report_receivers(report, "tp", sent, peers); });
}

/// Ranks 0 and 1 are a line, and so are 2 and 3.
int neighbour()
{
  return world().rank() / 2 * 2 + (world().rank() + 1) % 2;
}

/// So many bytes to one rank of the job.
Sizes to_rank(int receiver, std::int64_t bytes)
{
  Sizes sent(static_cast<std::size_t>(world().ranks()));
  sent[static_cast<std::size_t>(receiver)] = bytes;
  return sent;
}

/// Both of them, in order.
std::vector<int> line()
{
  const int first = world().rank() / 2 * 2;
  return {first, first + 1};
}

}  // namespace

TEST_CASE("sent_to_ranks: groups whose names begin with the axis's, and no others")
{
  TrafficLedger ledger;
  for (const char* group : {"tp", "tp inside", "tp between", "tied", "pp forward"})
    ledger.count(group, "all-reduce", {1, 10});
  ledger.count_to("tp", 1, 10);
  ledger.count_to("tp inside", 1, 15);
  ledger.count_to("tp inside", 3, 5);
  ledger.count_to("tp between", 2, 30);
  ledger.count_to("tied", 0, 1000);
  ledger.count_to("pp forward", 3, 7);
  CHECK(sent_to_ranks(ledger, "tp", 4) == Sizes{0, 25, 30, 5});
  CHECK(sent_to_ranks(ledger, "pp", 4) == Sizes{0, 0, 0, 7});
  CHECK(sent_to_ranks(ledger, "t", 4) == Sizes{0, 0, 0, 0});
  CHECK(sent_to_ranks(ledger, "dp", 2) == Sizes{0, 0});
}

TEST_CASE("report_receivers: the document has the bytes by sender and receiver, the same on all ranks")
{
  const Told all = told(to_rank(neighbour(), 100 + world().rank()), line());
  CHECK(all.passes);
  const auto N = static_cast<std::size_t>(world().ranks());
  const nlohmann::json& rows = all.json["receivers"]["tp"];
  REQUIRE(rows.size() == N);
  for (std::size_t sender = 0; sender < N; ++sender) {
    Sizes expected(N);
    expected[sender ^ 1] = 100 + static_cast<std::int64_t>(sender);
    CHECK(rows[sender].get<Sizes>() == expected);
  }
}

TEST_CASE("report_receivers: a message that leaves the axis fails the check on all ranks")
{
  const int N = world().ranks(), r = world().rank();
  const std::vector<int> peers = r == N - 1 ? std::vector{r} : line();  // the last rank may send to nobody
  CHECK(!told(to_rank(neighbour(), 100), peers).passes);
  CHECK(told(Sizes(static_cast<std::size_t>(N)), line()).passes);  // nothing was sent
}
