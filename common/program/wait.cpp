#include "common/program/wait.hpp"

#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#ifdef __linux__
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/base/error.hpp"
#include "common/program/session.hpp"

namespace rankwise {

namespace {

using std::chrono::nanoseconds;

/// The system's sched_yield().
void let_others_go_first()
{
#ifdef __linux__
  syscall(SYS_sched_yield);
#else
  std::this_thread::yield();
#endif
}

const char* name_in_environment()
{
  const char* const set = std::getenv("RANKWISE_WAITS");
  return set != nullptr ? set : "brief";
}

/// Empty if there is no policy of that name.
std::optional<WaitPolicy> policy_named_in_environment()
{
  const std::string_view name = name_in_environment();
  if (name == "brief") return WaitPolicy::brief;
  if (name == "active") return WaitPolicy::active;
  if (name == "passive") return WaitPolicy::passive;
  return std::nullopt;
}

class SystemClock final : public WaitClock {
 public:
  nanoseconds now() override { return std::chrono::steady_clock::now().time_since_epoch(); }

  void pause() override
  {
    if (ranks_on_machine() > cores_) return let_others_go_first();  // another rank probably has work to do
#ifdef __SSE2__
    _mm_pause();  // yields briefly to the core's other hardware thread
#endif
  }

  void sleep(nanoseconds time) override
  {
    std::this_thread::sleep_for(time);
  }
  nanoseconds spins() override
  {
    return spins_;
  }

 private:
  static nanoseconds spins_of(WaitPolicy policy)
  {
    if (policy == WaitPolicy::active) return nanoseconds::max();
    return policy == WaitPolicy::passive ? nanoseconds::zero() : spin_time;
  }

  // Libraries may pause before main(), where a wrong policy cannot be reported yet: prepare_waits() does.
  const nanoseconds spins_ = spins_of(policy_named_in_environment().value_or(WaitPolicy::brief));
  const int cores_ = static_cast<int>(std::thread::hardware_concurrency());
};

}  // namespace

WaitPolicy wait_policy()
{
  if (const auto policy = policy_named_in_environment()) return *policy;
  throw UserError(fmt::format("RANKWISE_WAITS is {}.", name_in_environment()),
                  "Set it to brief, active or passive, or not at all.");
}

WaitClock& wait_clock()
{
  static SystemClock clock;
  return clock;
}

void prepare_waits()
{
  wait_policy();
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
#ifdef __linux__
  prctl(PR_SET_TIMERSLACK, 1UL);  // ns; if it is refused, naps are longer
#endif
}

}  // namespace rankwise

#ifdef __linux__
/// Replaces the system's function for all libraries of this process by the pause of a wait. Open MPI waits by
/// polling for messages, and calls sched_yield() when there were none, in every blocking call and in its tests. It
/// has no option to sleep instead.
extern "C" int sched_yield() noexcept
{
  thread_local rankwise::Wait wait;
  wait.pause();
  return 0;
}
#endif

// ---- Threads of OpenMP ------------------------------------------------------------------------------------------------
//
// OpenMP libraries read from the environment how to wait when they are loaded, and have no function to change it
// later: libgomp (g++, and Debian's oneDNN with any compiler) reads GOMP_SPINCOUNT and OMP_WAIT_POLICY in its
// constructor, libomp (clang++) reads KMP_BLOCKTIME when it starts. By default a thread of libgomp spins for
// milliseconds, one of libomp for 200.
//
// So a program that finds other values in its environment executes itself again with the right ones. It does so in
// the first code of its own that the process runs, before the constructors of libraries: nothing has been done yet,
// and it costs a millisecond or two. At that point the C library has not set up its environment either: changes by
// setenv() would be lost, and the list of variables has no capacity for more.
#if defined(__linux__) && defined(__GLIBC__)

namespace {

// This runs before sanitizers are ready: plain loops and system calls.
#define RANKWISE_BEFORE_EVERYTHING \
  __attribute__((no_sanitize("address"), no_sanitize("undefined"), no_sanitize("thread")))

struct OpenMpWaits {
  char* spins;   // for libgomp: number of polls, 10 to 50 ns each
  char* blocks;  // for libomp: ms until a thread sleeps
};
char spins_brief[] = "GOMP_SPINCOUNT=1000", blocks_brief[] = "KMP_BLOCKTIME=0";
char spins_active[] = "GOMP_SPINCOUNT=infinite", blocks_active[] = "KMP_BLOCKTIME=infinite";
char spins_passive[] = "GOMP_SPINCOUNT=0";

/// True if @p text begins with @p start; with @p whole, if they are equal.
RANKWISE_BEFORE_EVERYTHING bool begins(const char* text, const char* start, bool whole = false)
{
  while (*start != '\0' && *text == *start) ++text, ++start;
  return *start == '\0' && (!whole || *text == '\0');
}

RANKWISE_BEFORE_EVERYTHING bool contains(const char* text, const char* part)
{
  for (; *text != '\0'; ++text)
    if (begins(text, part)) return true;
  return false;
}

/// The variables with which OpenMP's waits follow the policy.
RANKWISE_BEFORE_EVERYTHING OpenMpWaits wanted_waits(char** environment)
{
  for (char** variable = environment; *variable != nullptr; ++variable) {
    if (begins(*variable, "RANKWISE_WAITS=active", true)) return {spins_active, blocks_active};
    if (begins(*variable, "RANKWISE_WAITS=passive", true)) return {spins_passive, blocks_brief};
  }
  return {spins_brief, blocks_brief};
}

/// True if a variable configures the waits of OpenMP.
RANKWISE_BEFORE_EVERYTHING bool is_of_waits(const char* variable)
{
  return begins(variable, "GOMP_SPINCOUNT=") || begins(variable, "OMP_WAIT_POLICY=") ||
         begins(variable, "KMP_BLOCKTIME=");
}

/// True if this process can execute itself again: not if another program (ld.so, valgrind) runs it.
RANKWISE_BEFORE_EVERYTHING bool can_start_anew(char** environment)
{
  if (getauxval(AT_BASE) == 0) return false;  // the process is run by ld.so
  for (char** variable = environment; *variable != nullptr; ++variable)
    if (begins(*variable, "LD_PRELOAD=") && contains(*variable, "vgpreload")) return false;
  return true;
}

/// Executes this program again with the right variables, unless its environment has them already; so it happens at
/// most once. If that fails, for instance without /proc, the program continues as it is.
RANKWISE_BEFORE_EVERYTHING void settle_openmp_waits(int, char** arguments, char** environment)
{
  const OpenMpWaits wanted = wanted_waits(environment);
  int count = 0, of_waits = 0, right = 0;
  for (; environment[count] != nullptr; ++count) {
    of_waits += is_of_waits(environment[count]) ? 1 : 0;
    right +=
        begins(environment[count], wanted.spins, true) || begins(environment[count], wanted.blocks, true) ? 1 : 0;
  }
  if ((of_waits == 2 && right == 2) || !can_start_anew(environment)) return;

  auto** const changed = static_cast<char**>(__builtin_alloca(sizeof(char*) * static_cast<std::size_t>(count + 3)));
  char** next = changed;
  for (char** variable = environment; *variable != nullptr; ++variable)
    if (!is_of_waits(*variable)) *next++ = *variable;
  *next++ = wanted.spins;
  *next++ = wanted.blocks;
  *next = nullptr;

  // By its name, not as /proc/self/exe: the process keeps the name that ps shows.
  char path[4096];
  const long length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = '\0';
  syscall(SYS_execve, path, arguments, changed);
}

using EarlyFunction = void (*)(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] const EarlyFunction settle_first = settle_openmp_waits;

}  // namespace

#endif
