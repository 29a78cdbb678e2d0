// round_trip_s() of lesson 00: what comes back, the messages, and what is timed.

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/clock.hpp"
#include "lessons/00_mpi/round_trip.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/00/communicators.hpp"
#include "tests/lessons/00/counted_calls.hpp"

using namespace rankwise;

namespace {

/// Byte i of a rank's message.
std::byte byte_of(int rank, std::size_t i)
{
  return static_cast<std::byte>((50 * rank + static_cast<int>(i % 47) + 1) % 256);
}

/// What is wrong with a rank's bytes, in a sentence; empty if nothing.
std::string wrong(const std::vector<std::byte>& message, int r, int lower)
{
  for (std::size_t i = 0; i < message.size(); ++i)
    if (message[i] != byte_of(lower, i))
      return fmt::format("rank {}: byte {} is {}, expected {} of rank {}{}", r, i, static_cast<int>(message[i]),
                         static_cast<int>(byte_of(lower, i)), lower,
                         message[i] == byte_of(r, i) ? "; it is still the rank's own" : "");
  return "";
}

/// A round trip between this rank and its partner, each of which sleeps before it sends.
void test_trip(const Communicator& comm, int partner, std::size_t bytes, double delay_s)
{
  const int r = comm.rank(), lower = std::min(r, partner);
  std::vector<std::byte> message(bytes);
  for (std::size_t i = 0; i < bytes; ++i) message[i] = byte_of(r, i);
  CountedCalls calls;
  calls.delay_s = delay_s;
  const Stopwatch clock;
  const double time_s = round_trip_s(message, partner, comm.handle());
  const double whole_s = clock.seconds();
  CHECK(wrong(message, r, lower) == "");

  INFO("rank " << r << " with rank " << partner << " in " << comm.ranks());
  CHECK(fmt::format("{}", fmt::join(calls.forbidden, ", ")) == "");
  REQUIRE(calls.sent.size() == 1);
  CHECK(calls.sent[0].to == partner);
  CHECK(calls.sent[0].bytes == static_cast<std::int64_t>(bytes));
  CHECK(calls.received == 1);
  if (r > partner) {
    CHECK(time_s == 0);
  } else {
    // The lower rank sleeps before its message leaves, the higher one before it comes back: both are in between.
    INFO("in seconds, of a call that took " << whole_s);
    CHECK(time_s >= 2 * delay_s * 0.999);  // two clocks
    CHECK(time_s > 0);
    CHECK(time_s <= whole_s * 1.001);
  }
}

}  // namespace

TEST_CASE("round_trip_s: both ranks end with the bytes of the lower one, for any pair")
{
  in_communicators([](const Communicator& comm, const std::string& what) {
    const int r = comm.rank(), N = comm.ranks();
    for (const std::size_t bytes : {0, 1, 8, 5000, 1 << 20}) {
      INFO(what << ", " << bytes << " bytes");
      if ((r ^ 1) < N) test_trip(comm, r ^ 1, bytes, 0);  // neighbours, all pairs at once
      if (N - 1 - r != r) test_trip(comm, N - 1 - r, bytes, 0);
      CHECK(all_received(CountedCalls(), comm.handle()));
    }
  });
}

TEST_CASE("round_trip_s: the time is that of both messages, in seconds")
{
  const Communicator comm = Communicator::world();
  if (comm.rank() < 2 && comm.ranks() > 1) test_trip(comm, 1 - comm.rank(), 1000, 0.05);
}

TEST_CASE("measure_messages: the sizes, and the same times on all ranks")
{
  const Communicator comm = Communicator::world();
  if (comm.ranks() < 2) return;
  const std::vector<MessageTime> times = measure_messages(3, comm.handle());
  REQUIRE(times.size() == 20);
  for (std::size_t i = 0; i < times.size(); ++i) {
    CHECK(times[i].bytes == std::int64_t{8} << i);
    CHECK(times[i].time_s > 0);
    double first_s = times[i].time_s;
    check_mpi(MPI_Bcast(&first_s, 1, MPI_DOUBLE, 0, comm.handle()), "comparing times");
    CHECK(times[i].time_s == first_s);
  }
}
