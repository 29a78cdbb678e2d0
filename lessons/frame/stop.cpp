#include "lessons/frame/stop.hpp"

#include <algorithm>
#include <bit>
#include <csignal>
#include <omp.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include "common/files/descriptor.hpp"
#include "common/program/crash_report.hpp"
#include "common/program/rank_failure.hpp"
#include "common/program/session.hpp"
#include "common/program/terminal.hpp"

namespace rankwise {

namespace {

struct Request {
  int number;
  const char* name;
};
constexpr Request named_requests[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},       {SIGHUP, "SIGHUP"},
                                      {SIGQUIT, "SIGQUIT"}, {SIGUSR1, "SIGUSR1"},     {SIGUSR2, "SIGUSR2"},
                                      {SIGALRM, "SIGALRM"}, {SIGXCPU, "SIGXCPU"},     {SIGVTALRM, "SIGVTALRM"},
#ifdef __linux__
                                      {SIGPWR, "SIGPWR"},   {SIGSTKFLT, "SIGSTKFLT"},
#endif
                                      {SIGPROF, "SIGPROF"}, {SIGIO, "SIGIO"}};

#ifdef SIGRTMIN
const int first_real_time = SIGRTMIN, last_real_time = SIGRTMAX;
#else  // macOS has none
const int first_real_time = NSIG, last_real_time = NSIG - 1;
#endif

/// Numbers of the signals that ask to stop: those that have a name above, and all real-time signals.
std::vector<int> find_requests()
{
  std::vector<int> numbers;
  for (const Request& request : named_requests) numbers.push_back(request.number);
  for (int number = first_real_time; number <= last_real_time; ++number) numbers.push_back(number);
  return numbers;
}
const std::vector<int> requests = find_requests();

volatile std::sig_atomic_t noted_signal = 0;

extern "C" void note(int signal)
{
  noted_signal = signal;
  // A launcher leaves little time after a signal: no more pictures.
  if (drawn_below_cursor.exchange(false))
    static_cast<void>(!write(STDERR_FILENO, clear_picture.data(), clear_picture.size()));
}

/// True if @p handler handles a signal now. The process may have been started with the signal ignored, as by a
/// shell for background commands of a script, or a profiler may handle it.
bool is_handled_by(void (*handler)(int), int signal)
{
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == handler;
}

/// A second signal has its default effect, but for SIGXCPU: the system repeats it each second once the CPU time is used up.
void handle(int signal)
{
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>((signal == SIGXCPU ? 0 : SA_RESETHAND) | SA_RESTART | SA_ONSTACK);
  sigaction(signal, &action, nullptr);
}

/// Leaves the signals to the first thread, and gives it a stack for the handler. A matrix product of a library may
/// move the stack pointer (oneDNN 2.6 does), and then the handler's frame would overwrite other memory.
void handle_on_own_stack()
{
  provide_signal_stack();
  sigset_t set;
  sigemptyset(&set);
  for (const int request : requests) sigaddset(&set, request);
#pragma omp parallel
  if (omp_get_thread_num() != 0) pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

/// `ulimit -t` sets both limits of the CPU time, and the system kills at the hard one: asks for SIGXCPU a tenth earlier.
void limit_time_before_the_kill()
{
  rlimit time{};
  if (getrlimit(RLIMIT_CPU, &time) != 0 || time.rlim_max == RLIM_INFINITY) return;
  time.rlim_cur = std::min(time.rlim_cur, time.rlim_max - std::clamp<rlim_t>(time.rlim_max / 10, 1, 300));
  check_system(setrlimit(RLIMIT_CPU, &time) == 0, "limit the CPU time");
}

}  // namespace

StopRequests::StopRequests() : world_(Communicator::world())
{
  noted_signal = 0;
  handle_on_own_stack();
  for (const int request : requests)
    if (is_handled_by(SIG_DFL, request)) handle(request);
  limit_time_before_the_kill();
}

StopRequests::~StopRequests()
{
  for (const int request : requests)
    if (is_handled_by(note, request)) std::signal(request, SIG_DFL);
}

void StopRequests::begin_step()
{
  noted_ = noted_signal;
  if (can_survive()) return;
  check_mpi(MPI_Iallreduce(&noted_, &agreed_, 1, MPI_INT, MPI_MAX, world_.handle(), &agreeing_),
            "sending a request to stop to the other ranks");
}

int StopRequests::end_step()
{
  if (can_survive()) return agreed_signal(noted_);
  check_mpi(MPI_Wait(&agreeing_, MPI_STATUS_IGNORE), "agreeing on whether to stop");
  return agreed_;
}

int agreed_signal(int noted)
{
  // A bit of the agreement says that a signal was not noted. All real-time signals share the first.
  const unsigned own = noted == 0 ? 0 : 1U << (noted < first_real_time ? noted : 0);
  const unsigned all = ~agree_on(~own) << 1 >> 1;  // it carries 31 bits
  const int first = std::countr_zero(all);
  return all == 0 ? 0 : first == 0 ? first_real_time : first;
}

int noted_request()
{
  return noted_signal;
}

std::string name_of_signal(int signal)
{
  for (const auto& [number, name] : named_requests)
    if (number == signal) return name;
  return fmt::format("SIGRTMIN+{}", signal - first_real_time);
}

}  // namespace rankwise
