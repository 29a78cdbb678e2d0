#include "common/program/crash_report.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <span>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/program/code_places.hpp"
#include "common/program/time_ledger.hpp"

#ifdef __GLIBC__
#include <execinfo.h>
#include <spawn.h>

#include <sys/wait.h>
#endif

// A signal handler may neither allocate memory nor take a lock, so everything that it needs is prepared in static
// memory, and it uses only fmt::format_to_n(), with numbers and texts.

namespace rankwise {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitizer_reports = true;
#elif defined(__has_feature)
constexpr bool sanitizer_reports = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool sanitizer_reports = false;
#endif

struct Signal {
  int number;
  std::string_view name;
};
constexpr std::array<Signal, 5> signals = {{{SIGSEGV, "SIGSEGV (segmentation fault)"},
                                            {SIGBUS, "SIGBUS (bus error)"},
                                            {SIGFPE, "SIGFPE (arithmetic error, such as a division by zero)"},
                                            {SIGILL, "SIGILL (illegal instruction)"},
                                            {SIGABRT, "SIGABRT (abort() was called)"}}};

std::array<char, 128> who{};
bool (*first_to_speak)() = nullptr;
std::atomic<bool> reporting = false;                  // set by the first thread that reports
alignas(16) std::array<char, 1 << 16> handler_stack;  // used when the first thread's stack has overflowed

void say(std::string_view text)
{
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
}

void sleep_ms(long milliseconds)
{
  timespec time{milliseconds / 1000, milliseconds % 1000 * 1000000};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) continue;
}

void say_what_happened(int number)
{
  const auto signal =
      std::find_if(signals.begin(), signals.end(), [&](const Signal& s) { return s.number == number; });
  std::array<char, 256> span{};
  const std::size_t length = TimeLedger::write_innermost_span(span);
  std::array<char, 512> line{};
  const auto end = fmt::format_to_n(line.data(), line.size() - 1, "{}: {}{}{}", who.data(), signal->name,
                                    length == 0 ? "" : ", while ", std::string_view(span.data(), length));
  *end.out = '\n';
  say({line.data(), static_cast<std::size_t>(end.out - line.data()) + 1});
}

// ---- The place --------------------------------------------------------------------------------------------------------

#ifdef __GLIBC__

constexpr std::size_t shown_frames = 12;

posix_spawn_file_actions_t to_standard_error;  // redirects a command's output

std::array<char, 1024> program_file{};  // empty if it is not known

void prepare_place()
{
  if (readlink("/proc/self/exe", program_file.data(), program_file.size() - 1) < 0) program_file = {};
  place_in_program(
      nullptr);  // the first call looks for the program among the objects loaded, as a handler must not
  check(posix_spawn_file_actions_init(&to_standard_error) == 0 &&
            posix_spawn_file_actions_adddup2(&to_standard_error, STDERR_FILENO, STDOUT_FILENO) == 0,
        "cannot prepare a command for crash reports");
  void* frame = nullptr;
  backtrace(&frame, 1);  // the first call loads a library, which a signal handler must not do
}

/// Runs addr2line, which writes to standard error, for ten seconds at most.
/// @return  true if it ran.
bool run_addr2line(char* const* arguments)
{
  pid_t child = 0;
  if (posix_spawnp(&child, arguments[0], &to_standard_error, nullptr, arguments, environ) != 0) return false;
  int status = -1;
  pid_t ended = 0;
  for (int i = 0; i < 200 && ended == 0; ++i) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended == 0) sleep_ms(50);
  }
  if (ended == 0) kill(child, SIGKILL);
  return ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Writes the addresses of the program's own functions on the stack, without those of this handler, as addr2line
/// expects them.
std::size_t find_frames(std::span<std::array<char, 20>, shown_frames> texts)
{
  std::array<void*, 64> stack{};
  const int depth = backtrace(stack.data(), static_cast<int>(stack.size()));
  const auto own = [](void* frame) { return place_in_program(frame) != 0; };
  // The handler's own frames end where the system called it. The next frame is where the signal arrived; each frame
  // further out holds the return address of its call.
  const auto end = stack.begin() + depth;
  const auto arrived = std::next(std::find_if_not(stack.begin(), std::prev(end), own));
  std::size_t count = 0;
  for (auto frame = arrived; frame < end && count < texts.size(); ++frame) {
    if (!own(*frame)) continue;
    const std::uint64_t address = place_in_program(*frame) - (frame == arrived ? 0 : 1);
    *fmt::format_to_n(texts[count].data(), texts[count].size() - 1, "{:#x}", address).out = '\0';
    ++count;
  }
  return count;
}

void say_where()
{
  std::array<std::array<char, 20>, shown_frames> addresses{};
  const std::size_t count = program_file.front() == '\0' ? 0 : find_frames(addresses);
  if (count == 0) return;
  static std::array<char, 10> command{"addr2line"};
  static std::array<char, 7> options{"-Cfpie"};
  std::array<char*, 3 + shown_frames + 1> arguments{command.data(), options.data(), program_file.data()};
  for (std::size_t i = 0; i < count; ++i) arguments[3 + i] = addresses[i].data();
  if (run_addr2line(arguments.data())) return;
  for (std::size_t i = 0; i < 3 + count; ++i) {
    say(arguments[i]);
    say(i + 1 < 3 + count ? " " : "\n");
  }
}

#else

void prepare_place() {}
void say_where() {}

#endif

void report(int number)
{
  constexpr long others_ms = 5000;
  if (reporting.exchange(true)) {
    sleep_ms(4 * others_ms);  // the thread that reports ends the process
  } else if (!first_to_speak()) {
    sleep_ms(others_ms);  // the rank that reports ends the job
  } else {
    say_what_happened(number);
    say_where();
  }
  std::signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

void provide_signal_stack()
{
  stack_t stack{};
  check(sigaltstack(nullptr, &stack) == 0, "cannot look for a stack of signal handlers");
  if ((stack.ss_flags & SS_DISABLE) == 0) return;
  stack = {.ss_sp = handler_stack.data(), .ss_flags = 0, .ss_size = handler_stack.size()};
  check(sigaltstack(&stack, nullptr) == 0, "cannot set up a stack for signal handlers");
}

void report_crashes(const std::string& name, bool (*first)())
{
  if (sanitizer_reports) return;
  std::copy_n(name.begin(), std::min(name.size(), who.size() - 1), who.begin());
  first_to_speak = first;
  prepare_place();
  provide_signal_stack();
  struct sigaction action {};
  action.sa_handler = report;
  action.sa_flags = SA_ONSTACK;
  for (const Signal& signal : signals)
    check(sigaction(signal.number, &action, nullptr) == 0, fmt::format("{} cannot be handled", signal.name));
}

}  // namespace rankwise
