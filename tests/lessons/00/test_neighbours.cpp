// exchange_with_neighbours() of lesson 00: what arrives, the messages, and that it cannot hang.

#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lessons/00_mpi/neighbours.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/00/communicators.hpp"
#include "tests/lessons/00/counted_calls.hpp"

using namespace rankwise;

namespace {

/// Number of elements that a rank sends.
std::size_t count_of(int rank, std::size_t n)
{
  return n + static_cast<std::size_t>(rank);
}

/// Element i of a rank's message.
double element(int rank, std::size_t i)
{
  return 1000 * rank + static_cast<double>(i % 997) + 0.25;
}

/// What is wrong with what this rank received, in a sentence; empty if nothing.
std::string wrong(const std::vector<double>& received, int r, int previous)
{
  for (std::size_t i = 0; i < received.size(); ++i) {
    if (received[i] == element(previous, i)) continue;
    const auto whose = static_cast<int>(std::floor(received[i] / 1000));
    return fmt::format("rank {}: element {} is {}, expected {} of rank {}{}", r, i, received[i],
                       element(previous, i), previous,
                       received[i] == -1                  ? "; nothing was stored there"
                       : received[i] == element(whose, i) ? fmt::format("; it is that of rank {}", whose)
                                                          : "");
  }
  return "";
}

/// Exchanges messages of n + r elements in a communicator, and looks at what arrives and what was sent.
void test_exchange(const Communicator& comm, std::size_t n)
{
  const int N = comm.ranks(), r = comm.rank(), next = (r + 1) % N, previous = (r + N - 1) % N;
  std::vector<double> sent(count_of(r, n)), received(count_of(previous, n), -1);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = element(r, i);
  const std::vector<double> before = sent;
  CountedCalls calls;
  exchange_with_neighbours(sent, received, comm.handle());
  CHECK(wrong(received, r, previous) == "");
  CHECK(sent == before);

  INFO("rank " << r << " of " << N);
  CHECK(fmt::format("{}", fmt::join(calls.forbidden, ", ")) == "");
  REQUIRE(calls.sent.size() == 1);
  CHECK(calls.sent[0].to == next);
  CHECK(calls.sent[0].bytes == 8 * std::ssize(sent));
  CHECK(all_received(calls, comm.handle()));
}

}  // namespace

TEST_CASE("exchange_with_neighbours: every rank has the message of the previous one, and sends one to the next")
{
  in_communicators([](const Communicator& comm, const std::string& what) {
    for (const std::size_t n : {1, 10, 1001, 70001}) {
      INFO(what << ", n = " << n);
      test_exchange(comm, n);
    }
  });
}

TEST_CASE("exchange_with_neighbours: rank 0 has nothing to send, and the last rank has something")
{
  in_communicators([](const Communicator& comm, const std::string& what) {
    INFO(what);
    test_exchange(comm, 0);
  });
}

TEST_CASE("exchange_with_neighbours: many exchanges one after the other do not mix")
{
  const Communicator comm = Communicator::world();
  for (int round = 0; round < 50; ++round) test_exchange(comm, static_cast<std::size_t>(round % 7 + 1));
}
