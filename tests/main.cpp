// The main function of every test program: Catch2 inside a session of one or several ranks.
//
// With several ranks each runs all test cases. A case that fails on any rank ends the whole job, because the others may
// wait for that rank for ever; what Catch says about it is printed with the rank before each line.

#define CATCH_CONFIG_RUNNER
#define CATCH_CONFIG_NOSTDOUT
#include <chrono>
#include <iostream>
#include <sstream>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "common/base/error.hpp"
#include "tests/world.hpp"

namespace {

const rankwise::Session* session = nullptr;
std::stringbuf held_back;  // what Catch wrote on this rank, where there are several

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

/// Catch's stream: straight out for one rank, held back for several.
std::streambuf* stream_buffer()
{
  return session->ranks() == 1 ? std::cout.rdbuf() : &held_back;
}

/// Ends the job when a test case has failed on this rank.
class EndJobOnFailure : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  bool assertionEnded(const Catch::AssertionStats& stats) override
  {
    // MPI_Abort on another rank ends this one by a signal: nothing has failed here.
    const Catch::AssertionResult& result = stats.assertionResult;
    if (session->ranks() > 1 && result.getResultType() == Catch::ResultWas::FatalErrorCondition &&
        std::string(result.getMessage()).starts_with("SIGTERM")) {
      std::_Exit(rankwise::exit_failure);
    }
    return false;
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
  return fmt::format("{}:{}: {}", rankwise::short_file_name(error.where().file_name()), error.where().line(),
                     error.what());
}

namespace Catch {

std::ostream& cout()
{
  static std::ostream stream(stream_buffer());
  return stream;
}
std::ostream& cerr()
{
  return cout();
}
std::ostream& clog()
{
  return cout();
}

}  // namespace Catch

const rankwise::Session& rankwise::world()
{
  return *session;
}

int main(int argc, char** argv)
{
  rankwise::Session own_session(argc, argv);
  session = &own_session;
  Catch::Session tests;
  if (own_session.ranks() > 1)
    tests.configData().useColour = Catch::UseColour::No;  // lines of ranks stand together
  int status = tests.run(argc, argv) == 0 ? rankwise::exit_success : rankwise::exit_failure;
  if (own_session.ranks() > 1 && (own_session.rank() == 0 || status != rankwise::exit_success)) {
    print_held_back(status != rankwise::exit_success);
  }
  rankwise::check_mpi(MPI_Allreduce(MPI_IN_PLACE, &status, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD),
                      "ending the tests");
  return status;
}
