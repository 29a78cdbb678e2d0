// Test cases that fail on purpose, for tests/common/messages/test_program.sh: one at a time is chosen by its name.

#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/world.hpp"

using namespace rankwise;

TEST_CASE("holds", "[.]")
{
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "meeting");
  CHECK(world().rank() < world().ranks());
}

TEST_CASE("fails on the last rank", "[.]")
{
  REQUIRE(world().rank() + 1 < world().ranks());
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "waiting for the rank that fails");
}

TEST_CASE("throws on the last rank", "[.]")
{
  check(world().rank() + 1 < world().ranks(), "thrown on purpose");
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "waiting for the rank that fails");
}
