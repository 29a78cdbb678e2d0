#include <stdexcept>

#include "common/base/error.hpp"
#include "common/program/session.hpp"
#include "common/program/time_ledger.hpp"
#include "tests/catch.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

template <class Exception>
Failure described(const Exception& exception)
{
  return describe(std::make_exception_ptr(exception));
}

}  // namespace

TEST_CASE("Session: has the rank and the number of ranks of MPI")
{
  int rank = -1, ranks = -1, threads = -1;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "asking for the rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "asking for the ranks");
  check_mpi(MPI_Query_thread(&threads), "asking for the level of threads");
  CHECK(world().rank() == rank);
  CHECK(world().ranks() == ranks);
  CHECK(threads == MPI_THREAD_MULTIPLE);
}

TEST_CASE("Session: messages arrive, each from its rank")
{
  const int next = (world().rank() + 1) % world().ranks();
  const int previous = (world().rank() + world().ranks() - 1) % world().ranks();
  const int sent = 100 + 7 * world().rank();
  int received = -1;
  check_mpi(MPI_Sendrecv(&sent, 1, MPI_INT, next, 0, &received, 1, MPI_INT, previous, 0, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE),
            "passing a number on");
  CHECK(received == 100 + 7 * previous);
}

TEST_CASE("check_mpi: an error of MPI becomes an Error with MPI's text, on both communicators")
{
  for (const MPI_Comm communicator : {MPI_COMM_WORLD, MPI_COMM_SELF}) {
    const auto send_to_nobody = [&] {
      check_mpi(MPI_Send(nullptr, 0, MPI_INT, world().ranks(), 0, communicator), "sending to nobody");
    };
    CHECK_THROWS_AS(send_to_nobody(), Error);
    CHECK_THROWS_WITH(send_to_nobody(), Contains("MPI failed at sending to nobody: ") &&
                                            (Contains("MPI_ERR_RANK") || Contains("Invalid rank")));
  }
  CHECK_NOTHROW(check_mpi(MPI_SUCCESS, "nothing"));
}

TEST_CASE("describe: file and line of an Error, the span that it left, and the status")
{
  TimeLedger time;
  {
    const auto clear = time.span(Work::compute, "something before");
  }
  const Failure error = described(Error("the loss is not finite"));
  CHECK_THAT(error.message, StartsWith("tests/common/program/test_session.cpp:"));
  CHECK_THAT(error.message, EndsWith(": the loss is not finite"));
  CHECK(error.status == exit_failure);

  CHECK(described(std::runtime_error("out of luck")).message == "out of luck");
  CHECK(described(std::runtime_error("out of luck")).status == exit_failure);
  CHECK(described(42).status == exit_failure);
  CHECK(describe(nullptr).status == exit_failure);

  const Failure user = described(UserError("No.", "Do."));
  CHECK(user.message == "error: No.\n       Do.");
  CHECK(user.status == exit_user_error);

  try {
    const auto span = time.span(Work::io, "reading the tokens");
    throw std::runtime_error("end of file");
  } catch (...) {
    CHECK_THAT(describe(std::current_exception()).message,
               Contains("end of file, while reading the tokens (tests/common/program/test_session.cpp:"));
  }
}

TEST_CASE("short_file_name: from the root of the sources, if it is there")
{
  CHECK(short_file_name(__FILE__) == "tests/common/program/test_session.cpp");
  CHECK(short_file_name("/elsewhere/a.cpp") == "/elsewhere/a.cpp");
  CHECK(short_file_name("a.cpp") == "a.cpp");
}
