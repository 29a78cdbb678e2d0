// tree_broadcast() of lesson 00: values, messages and steps, for any root and number of ranks.

#include <algorithm>
#include <bit>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lessons/00_mpi/tree_broadcast.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/00/communicators.hpp"
#include "tests/lessons/00/counted_calls.hpp"

using namespace rankwise;

namespace {

/// Element i of a rank's vector.
double element(int rank, std::size_t i)
{
  return 1000 * rank + static_cast<double>(i % 997) + 0.5;
}

/// What is wrong with a rank's values, in a sentence; empty if nothing.
std::string wrong(const std::vector<double>& values, int r, int root)
{
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != element(root, i))
      return fmt::format("rank {}: element {} is {}, expected {} of root {}{}", r, i, values[i], element(root, i),
                         root, values[i] == element(r, i) ? "; it is still the rank's own" : "");
  return "";
}

/// To whom each rank sends, in order: what all ranks have counted.
std::vector<std::vector<int>> receivers_of(const CountedCalls& calls, const Communicator& comm)
{
  std::vector<std::vector<int>> all(static_cast<std::size_t>(comm.ranks()));
  for (int r = 0; r < comm.ranks(); ++r) {
    std::vector<int>& to = all[static_cast<std::size_t>(r)];
    int count = static_cast<int>(calls.sent.size());
    check_mpi(PMPI_Bcast(&count, 1, MPI_INT, r, comm.handle()), "sharing the number of messages");
    to.resize(static_cast<std::size_t>(count));
    if (r == comm.rank())
      std::transform(calls.sent.begin(), calls.sent.end(), to.begin(), [](const SentMessage& m) { return m.to; });
    check_mpi(PMPI_Bcast(to.data(), count, MPI_INT, r, comm.handle()), "sharing the receivers");
  }
  return all;
}

/// The step after which the last rank has the values, if a rank sends one message in a step.
int steps(const std::vector<std::vector<int>>& receivers, int rank, int has_since)
{
  int last = has_since;
  for (const int to : receivers[static_cast<std::size_t>(rank)])
    last = std::max(last, steps(receivers, to, ++has_since));
  return last;
}

/// Broadcasts n elements from a root, and looks at values, messages and steps.
void test_broadcast(const Communicator& comm, int root, std::size_t n)
{
  const int N = comm.ranks(), r = comm.rank();
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = element(r, i);
  CountedCalls calls;
  tree_broadcast(values, root, comm.handle());
  CHECK(wrong(values, r, root) == "");

  INFO("rank " << r << " of " << N);
  CHECK(fmt::format("{}", fmt::join(calls.forbidden, ", ")) == "");
  REQUIRE(calls.received == (r == root ? 0 : 1));
  for (const SentMessage& message : calls.sent) CHECK(message.bytes == 8 * static_cast<std::int64_t>(n));
  REQUIRE(all_received(calls, comm.handle()));
  const int log2 = std::bit_width(static_cast<unsigned>(N - 1));  // rounded up
  CHECK(steps(receivers_of(calls, comm), root, 0) <= log2);
}

}  // namespace

TEST_CASE("tree_broadcast: every rank has the values of the root, after ceil(log2 N) steps and N-1 messages")
{
  in_communicators([](const Communicator& comm, const std::string& what) {
    for (int root = 0; root < comm.ranks(); ++root)
      for (const std::size_t n : {1, 1001, 0, 70001}) {
        INFO(what << ", root " << root << ", n = " << n);
        test_broadcast(comm, root, n);
      }
  });
}
