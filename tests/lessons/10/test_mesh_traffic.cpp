// Who sends to whom in lesson 10.

#include <vector>

#include "lessons/parallel/mesh/mesh_traffic.hpp"
#include "tests/catch.hpp"
#include "tests/reported.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

using Sizes = std::vector<std::int64_t>;

/// The report of receivers, and its status.
Told told(const Sizes& sent, const std::vector<int>& peers)
{
  return Told(false, [&](Report& report) { check_receivers(report, "tp", sent, peers); });
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

TEST_CASE("check_receivers: a message that leaves the axis fails the check on all ranks")
{
  const int N = world().ranks(), r = world().rank();
  const std::vector<int> peers = r == N - 1 ? std::vector{r} : line();  // the last rank may send to nobody
  CHECK(!told(to_rank(neighbour(), 100), peers).passes);
  CHECK(told(Sizes(static_cast<std::size_t>(N)), line()).passes);  // nothing was sent
}
