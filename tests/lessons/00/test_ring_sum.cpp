// ring_sum() of lesson 00: the sum, and the messages around the ring.

#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lessons/00_mpi/ring_sum.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/00/communicators.hpp"
#include "tests/lessons/00/counted_calls.hpp"

using namespace rankwise;

namespace {

constexpr int base = 16;                                // a digit counts how often a rank has been added
constexpr std::int64_t digits = std::int64_t{1} << 24;  // six ranks

/// Element i of a rank's vector: a digit for the rank, and the index above all digits. Sums of them are whole numbers,
/// the same in any order.
double element(int rank, std::int64_t i)
{
  return std::pow(base, rank) + static_cast<double>(digits * (i + 1));
}

/// What is wrong with element i, as "is the sum of 2 of 3 ranks"; empty if nothing.
std::string wrong_element(double value, std::int64_t i, int N)
{
  double sum = 0;
  for (int r = 0; r < N; ++r) sum += element(r, i);
  if (value == sum) return "";
  std::vector<int> missing, twice;
  int terms = 0, ranks = 0;
  auto rest = static_cast<std::int64_t>(value) % digits;
  for (int r = 0; r < N; ++r, rest /= base) {
    const int times = static_cast<int>(rest % base);
    terms += times;
    ranks += times > 0;
    if (times == 0) missing.push_back(r);
    if (times > 1) twice.push_back(r);
  }
  if (static_cast<std::int64_t>(value) / digits != terms * (i + 1) || terms == 0)
    return fmt::format("is {}, no sum of the ranks' elements {}", value, i);
  std::string text = fmt::format("is the sum of {} of {} ranks", ranks, N);
  if (!missing.empty()) text += fmt::format(", without rank {}", fmt::join(missing, ", "));
  if (!twice.empty()) text += fmt::format(", more than once of rank {}", fmt::join(twice, ", "));
  return text;
}

/// What is wrong with this rank's sum, in a sentence; empty if nothing.
std::string wrong(const std::vector<double>& values, int r, int N)
{
  for (std::int64_t i = 0; i < std::ssize(values); ++i)
    if (const std::string text = wrong_element(values[static_cast<std::size_t>(i)], i, N); !text.empty())
      return fmt::format("rank {}: element {} {}", r, i, text);
  return "";
}

/// Sums n elements, and looks at the result, the messages and their bytes.
void test_sum(const Communicator& comm, std::int64_t n)
{
  const int N = comm.ranks(), r = comm.rank();
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = element(r, i);
  CountedCalls calls;
  ring_sum(values, comm.handle());
  CHECK(wrong(values, r, N) == "");

  INFO("rank " << r << " of " << N);
  CHECK(fmt::format("{}", fmt::join(calls.forbidden, ", ")) == "");
  CHECK(std::ssize(calls.sent) <= 2 * (N - 1));
  for (const SentMessage& message : calls.sent) {
    CHECK(message.to == (r + 1) % N);
    CHECK(message.bytes <= 8 * ((n + N - 1) / N));
  }
  std::int64_t bytes = calls.sent_bytes();
  check_mpi(PMPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_INT64_T, MPI_SUM, comm.handle()), "adding up bytes");
  CHECK(bytes == 2 * (N - 1) * 8 * n);
  CHECK(all_received(calls, comm.handle()));
}

}  // namespace

TEST_CASE("ring_sum: every rank has the sum, and 2 (N-1) shards went around the ring")
{
  in_communicators([](const Communicator& comm, const std::string& what) {
    const std::int64_t N = comm.ranks();
    for (const std::int64_t n :
         {N, N - 1, N + 1, std::int64_t{0}, std::int64_t{1}, std::int64_t{1001}, 20000 * N + 2}) {
      INFO(what << ", n = " << n);
      test_sum(comm, n);
    }
  });
}

TEST_CASE("ring_sum: many sums one after the other do not mix")
{
  const Communicator comm = Communicator::world();
  for (int round = 0; round < 50; ++round) test_sum(comm, round % 11);
}
