// Requests to stop: noted at any moment, agreed on by all ranks, and harmless to what is being computed.

#include <chrono>
#include <csignal>
#include <set>
#include <thread>
#include <unistd.h>
#include <vector>

#include "gpt2/kernels/cpu/gemm.hpp"
#include "lessons/frame/stop.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

constexpr std::int64_t m = 256, n = 192, k = 256;

/// The product of two matrices of ones, on fresh memory; whether it is right.
bool multiply()
{
  const std::vector<float> a(m * k, 1), b(k * n, 1);
  std::vector<float> out(m * n);
  gemm(out.data(), n, {a.data(), k, false}, {b.data(), n, false}, m, n, k, false);
  return out.front() == k && out.back() == k;
}

}  // namespace

TEST_CASE("StopRequests: none is asked for, so none is agreed on")
{
  StopRequests stop;
  stop.begin_step();
  CHECK(stop.end_step() == 0);
}

TEST_CASE("StopRequests: one rank is asked, all stop")
{
  StopRequests stop;
  if (world().rank() == world().ranks() - 1) raise(SIGUSR1);
  stop.begin_step();
  CHECK(stop.end_step() == SIGUSR1);
}

TEST_CASE("StopRequests: every signal that ends a process asks to stop, but for those of faults and of writes")
{
  const std::set<int> others{SIGKILL, SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGABRT, SIGTRAP, SIGSYS, SIGPIPE,
                             SIGXFSZ, SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
  for (int number = 1; number <= SIGRTMAX; ++number) {
    if (others.contains(number) || (31 < number && number < SIGRTMIN)) continue;  // glibc keeps two for itself
    std::signal(number, SIG_DFL);                                                 // the test's library handles some
    StopRequests stop;
    raise(number);
    stop.begin_step();
    CHECK(stop.end_step() == number);
    CHECK(name_of_signal(number).starts_with("SIG"));
  }
}

TEST_CASE(
    "agreed_signal: the signal that all ranks have noted; of the real-time signals, which share a bit, the first")
{
  CHECK(agreed_signal(0) == 0);
  for (const int number : {SIGHUP, SIGUSR1, SIGTERM, SIGXCPU, SIGIO}) CHECK(agreed_signal(number) == number);
  for (const int number : {SIGRTMIN, SIGRTMIN + 1, SIGRTMAX}) CHECK(agreed_signal(number) == SIGRTMIN);
}

TEST_CASE("StopRequests: a signal that another part of the process handles stays its own")
{
  std::signal(SIGPROF, [](int) {});
  {
    StopRequests stop;
    raise(SIGPROF);
    stop.begin_step();
    CHECK(stop.end_step() == 0);
  }
  CHECK(std::signal(SIGPROF, SIG_DFL) != SIG_DFL);
}

TEST_CASE("StopRequests: a signal in the middle of a matrix product overwrites nothing")
{
  for (int round = 0; round < 400; ++round) {
    StopRequests stop;
    std::thread asks([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(7 * round % 1000));
      kill(getpid(), SIGUSR1);
    });
    for (int product = 0; product < 4; ++product) REQUIRE(multiply());
    asks.join();
    stop.begin_step();
    REQUIRE(stop.end_step() == SIGUSR1);
  }
}
