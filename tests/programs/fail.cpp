// A program that fails on purpose, for tests/common/messages/test_program.sh: on one rank, on all, before or after the first
// message. The ranks that do not fail wait in a barrier that the failing one never reaches.

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/messages/program.hpp"
#include "common/program/time_ledger.hpp"

namespace {

using namespace rankwise;

enum class How {
  nothing,
  error,
  standard,
  user,
  mpi,
  exercise,
  thread,
  status,
  segfault,
  overflow,
  bus,
  division,
  illegal,
  abort,
  exit,
  exit_in_thread,
  segfault_in_thread,
  terminate
};

struct Settings {
  How how = How::nothing;
  int rank = 0;  // that fails; -1 for all
  bool early = false;

  bool meant(const Session& session) const { return rank == -1 || rank == session.rank(); }
};

/// How many libraries' code is in memory; 0 where the system does not say.
std::ptrdiff_t libraries()
{
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("r-xp") != line.npos && line.find(".so") != line.npos;
  return count;
}

/// Needs a new piece of the stack again and again; the result keeps it from becoming a loop.
int recurse(int depth)
{
  volatile char piece[4096];
  piece[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : recurse(depth + 1) + piece[0];
}

/// Does what ends a process.
void die(How how)
{
  if (how == How::segfault || how == How::segfault_in_thread) *static_cast<volatile int*>(nullptr) = 1;
  if (how == How::overflow) std::exit(recurse(1));
  if (how == How::bus) check(std::raise(SIGBUS) == 0, "raising SIGBUS");
  if (how == How::division) check(std::raise(SIGFPE) == 0, "raising SIGFPE");
  if (how == How::illegal) __builtin_trap();
  if (how == How::abort) std::abort();
  if (how == How::exit || how == How::exit_in_thread) std::exit(0);
  if (how == How::terminate) std::terminate();
}

void fail(How how)
{
  TimeLedger time;
  const auto outer = time.span(Work::compute, "running the step");
  const auto inner = time.span(Work::exposed, "averaging gradients");
  if (how == How::error) throw Error("the loss is not finite");
  if (how == How::standard) throw std::runtime_error("out of luck");
  if (how == How::user) throw UserError("--how=user was asked for.", "Ask for something else.");
  if (how == How::mpi) check_mpi(MPI_Send(nullptr, 0, MPI_INT, 1000, 0, MPI_COMM_WORLD), "sending to nobody");
  if (how == How::exercise) not_implemented("01.1", "write the backward pass");
  if (how == How::thread) std::thread([] { throw Error("thrown in a thread"); }).join();
  if (how == How::segfault_in_thread || how == How::exit_in_thread) std::thread(die, how).join();
  die(how);
}

}  // namespace

int main(int argc, char** argv)
{
  Settings settings;
  OptionTable options("fail", "Fails on purpose.");
  options.add_choice<How>("Failing", "how", settings.how,
                          {{"nothing", How::nothing},
                           {"error", How::error},
                           {"standard", How::standard},
                           {"user", How::user},
                           {"mpi", How::mpi},
                           {"exercise", How::exercise},
                           {"thread", How::thread},
                           {"status", How::status},
                           {"segfault", How::segfault},
                           {"overflow", How::overflow},
                           {"bus", How::bus},
                           {"division", How::division},
                           {"illegal", How::illegal},
                           {"abort", How::abort},
                           {"exit", How::exit},
                           {"exit-in-thread", How::exit_in_thread},
                           {"segfault-in-thread", How::segfault_in_thread},
                           {"terminate", How::terminate}},
                          "what to do");
  options.add("Failing", "rank", settings.rank, "the rank that fails, -1 for all");
  options.add("Failing", "early", settings.early, "fail while looking for what cannot be");

  std::ptrdiff_t loaded = 0;
  const int status = run_program(
      argc, argv, options,
      [&](const Session& session) {
        if (settings.early && settings.meant(session)) fail(settings.how);
      },
      [&](Session& session) {
        fmt::print("rank {} runs\n", session.rank());
        loaded = libraries();
        if (settings.how == How::nothing) return static_cast<int>(exit_success);
        if (settings.how == How::status) {
          return static_cast<int>(settings.meant(session) ? exit_failure : exit_success);
        }
        if (settings.meant(session)) fail(settings.how);
        check_mpi(MPI_Barrier(MPI_COMM_WORLD), "waiting for the rank that fails");
        return static_cast<int>(exit_success);
      });
  if (libraries() < loaded) fmt::print("libraries are gone\n");
  return status;
}
