// Who sends how much to whom in lesson 10.

#include <vector>

#include <catch2/catch.hpp>

#include "lessons/10_3d_parallel/mesh_traffic.hpp"
#include "tests/told.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

using Bytes = std::vector<std::int64_t>;

/// What a report says of receivers, and how it ends.
Told told(const Sent& sent, const std::vector<int>& peers)
{
  return Told(false, [&](Report& report) { report_receivers(report, world(), "tp", sent, peers); });
}

/// Ranks 0 and 1 are a line, and so are 2 and 3.
int neighbour()
{
  return world().rank() / 2 * 2 + (world().rank() + 1) % 2;
}

/// So many bytes to one rank of the job.
Sent to_rank(int receiver, std::int64_t bytes)
{
  Sent sent{{1, bytes}, Bytes(static_cast<std::size_t>(world().ranks()))};
  sent.to_ranks[static_cast<std::size_t>(receiver)] = bytes;
  return sent;
}

/// Both of them, in order.
std::vector<int> line()
{
  const int first = world().rank() / 2 * 2;
  return {first, first + 1};
}

}  // namespace

TEST_CASE("Sent: sums and differences of traffic, receiver by receiver")
{
  Sent sum;
  sum += {{2, 30}, {10, 20}};
  sum += {{1, 5, 7}, {0, 1, 4}};
  CHECK(sum.traffic == Traffic{3, 35, 7});
  CHECK(sum.to_ranks == Bytes{10, 21, 4});
  sum += Sent{};
  CHECK(sum.to_ranks == Bytes{10, 21, 4});
  const Sent rest = sum - Sent{{2, 30}, {10, 20}};
  CHECK(rest.traffic == Traffic{1, 5, 7});
  CHECK(rest.to_ranks == Bytes{0, 1, 4});
}

TEST_CASE("sent_in: groups of these names with their levels, and no others")
{
  TrafficLedger ledger;
  ledger.count("tp", "all-reduce", {1, 10});
  ledger.count_to("tp", 1, 10);
  ledger.count("tp inside", "all-reduce", {2, 20});
  ledger.count_to("tp inside", 1, 15);
  ledger.count_to("tp inside", 3, 5);
  ledger.count("tp between", "all-reduce", {3, 30, 4});
  ledger.count_to("tp between", 2, 30);
  ledger.count("tied", "all-reduce", {1, 1000});
  ledger.count_to("tied", 0, 1000);
  const Sent parts = sent_in(ledger, {"tp"}, 4);
  CHECK(parts.traffic == Traffic{6, 60, 4});
  CHECK(parts.to_ranks == Bytes{0, 25, 30, 5});
  const Sent both = sent_in(ledger, {"tp", "tied"}, 4);
  CHECK(both.traffic == Traffic{7, 1060, 4});
  CHECK(both.to_ranks == Bytes{1000, 25, 30, 5});
  CHECK(sent_in(ledger, {"dp"}, 2).to_ranks == Bytes{0, 0});
}

TEST_CASE("report_receivers: who sent to whom stands in the document, the same on all ranks")
{
  const Told all = told(to_rank(neighbour(), 100 + world().rank()), line());
  CHECK(all.passes);
  const auto N = static_cast<std::size_t>(world().ranks());
  const nlohmann::json& rows = all.json["receivers"]["tp"];
  REQUIRE(rows.size() == N);
  for (std::size_t sender = 0; sender < N; ++sender) {
    Bytes expected(N);
    expected[sender ^ 1] = 100 + static_cast<std::int64_t>(sender);
    CHECK(rows[sender].get<Bytes>() == expected);
  }
}

TEST_CASE("report_receivers: a message that leaves the axis fails the check on all ranks")
{
  const int N = world().ranks(), r = world().rank();
  const std::vector<int> peers = r == N - 1 ? std::vector{r} : line();  // the last rank may send to nobody
  CHECK(!told(to_rank(neighbour(), 100), peers).passes);
  CHECK(told({{}, Bytes(static_cast<std::size_t>(N))}, line()).passes);  // nothing was sent
}
