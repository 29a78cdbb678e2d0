// Circles of sends and sends to a late receiver of lesson 00: which of them wait.

#include <algorithm>
#include <vector>

#include "lessons/00_mpi/deadlock.hpp"
#include "lessons/00_mpi/eager.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/00/communicators.hpp"

using namespace rankwise;

namespace {

/// Whether MPI knows of a message that was not received.
bool something_left(MPI_Comm comm)
{
  int found = 0;
  check_mpi(MPI_Barrier(comm), "waiting for all ranks");
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, MPI_STATUS_IGNORE), "looking for messages");
  return found != 0;
}

}  // namespace

TEST_CASE("try_circle: synchronous sends wait on every rank, long ones too, and all end")
{
  in_communicators([](const Communicator& comm, const std::string& what) {
    INFO(what);
    const std::vector<int> all(static_cast<std::size_t>(comm.ranks()), 1);
    for (const std::int64_t bytes : {0, 8, 1 << 20})
      CHECK(try_circle(bytes, Sending::synchronous, comm.handle()) == all);
    CHECK(try_circle(4 << 20, Sending::standard, comm.handle()) == all);
    CHECK(!something_left(comm.handle()));
  });
}

TEST_CASE("find_eager_limit: neighbouring sizes, the same on all ranks; a longer message waits")
{
  const Communicator comm = Communicator::world();
  if (comm.ranks() < 2) return;
  const std::optional<EagerLimit> limit = find_eager_limit(comm.handle());
  REQUIRE(limit.has_value());
  CHECK(limit->waits == limit->ends_alone + 1);
  std::int64_t first = limit->waits;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT64_T, 0, comm.handle()), "comparing limits");
  CHECK(first == limit->waits);
  CHECK(!ends_alone(2 * limit->waits, comm.handle()));
  CHECK(!something_left(comm.handle()));
}

TEST_CASE("late_receiver_s: a time, the same on all ranks, and nothing is left")
{
  const Communicator comm = Communicator::world();
  if (comm.ranks() < 2) return;
  for (const std::int64_t bytes : {8, 4 << 20})
    for (const Until until : {Until::asleep, Until::in_library}) {
      const double time_s = late_receiver_s(bytes, until, 0.01, comm.handle());
      double first_s = time_s;
      check_mpi(MPI_Bcast(&first_s, 1, MPI_DOUBLE, 0, comm.handle()), "comparing times");
      CHECK(time_s == first_s);
      CHECK(time_s > 0);
    }
  CHECK(!something_left(comm.handle()));
}
