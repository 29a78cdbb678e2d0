// The main function of every test program: Catch2 inside a session of one or several ranks.
//
// With several ranks each runs all test cases. A case that fails on any rank ends the whole job, because the others may
// wait for that rank for ever; what Catch says about it is printed with the rank before each line.

#define CATCH_CONFIG_RUNNER
#include <chrono>
#include <iostream>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "tests/catch.hpp"
#include "tests/world.hpp"

namespace {

const rankwise::Session* session = nullptr;
// What Catch wrote on this rank, where there are several: in memory that std::cout may use to the very end.
std::stringbuf& held_back = *new std::stringbuf;

/// Prints what was held back; with the rank before each line if @p with_rank.
void print_held_back(bool with_rank)
{
  std::istringstream lines(held_back.str());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += with_rank ? fmt::format("rank {}: {}\n", session->rank(), line) : line + "\n";
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

#if CATCH_VERSION_MAJOR == 2
using Listener = Catch::TestEventListenerBase;

void use_no_colour(Catch::Session& tests)
{
  tests.configData().useColour = Catch::UseColour::No;
}
#else
using Listener = Catch::EventListenerBase;

void use_no_colour(Catch::Session& tests)
{
  tests.configData().defaultColourMode = Catch::ColourMode::None;
}
#endif

/// Ends the job when a test case has failed on this rank.
class EndJobOnFailure : public Listener {
 public:
  using Listener::Listener;

  auto assertionEnded(const Catch::AssertionStats& stats) -> decltype(Listener::assertionEnded(stats)) override
  {
    // MPI_Abort on another rank ends this one by a signal: nothing has failed here.
    const Catch::AssertionResult& result = stats.assertionResult;
    if (session->ranks() > 1 && result.getResultType() == Catch::ResultWas::FatalErrorCondition &&
        std::string(result.getMessage()).starts_with("SIGTERM")) {
      std::_Exit(rankwise::exit_failure);
    }
    return Listener::assertionEnded(stats);
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override
  {
    if (session->ranks() == 1 || stats.totals.assertions.allOk()) return;
    print_held_back(true);
    // Ranks that fail in the same place get a moment to say so too.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    MPI_Abort(MPI_COMM_WORLD, rankwise::exit_failure);
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(EndJobOnFailure)

CATCH_TRANSLATE_EXCEPTION(const rankwise::Error& error)
{
  return fmt::format("{}: {}", rankwise::text_of(error.where()), error.what());
}

const rankwise::Session& rankwise::world()
{
  return *session;
}

int main(int argc, char** argv)
{
  rankwise::Session own_session(argc, argv);
  session = &own_session;
  if (own_session.ranks() > 1) std::cout.rdbuf(&held_back);
  Catch::Session tests;
  use_no_colour(tests);  // mpirun makes a pipe look like a terminal
  int status = tests.run(argc, argv) == 0 ? rankwise::exit_success : rankwise::exit_failure;
  if (own_session.ranks() > 1 && (own_session.rank() == 0 || status != rankwise::exit_success)) {
    print_held_back(status != rankwise::exit_success);
  }
  rankwise::check_mpi(MPI_Allreduce(MPI_IN_PLACE, &status, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD),
                      "ending the tests");
  return status;
}
