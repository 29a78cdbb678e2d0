#include "common/messages/program.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <future>
#include <optional>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include "common/base/activity.hpp"
#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/messages/agreement.hpp"
#include "common/messages/job_report.hpp"
#include "common/messages/watchdog/message_counts.hpp"
#include "common/messages/watchdog/watchdog.hpp"
#include "common/program/launcher.hpp"
#include "common/program/terminal.hpp"

namespace rankwise {

namespace {

/// Message of a rank that cannot run, and the program's exit status.
struct Stop {
  int status;
  std::string text;
};

/// Ends this process if this object still exists after the time limit. It guards the start and the end of MPI, when the watchdog
/// does not run: MPI then waits for all processes of the job, even for one that has died.
class Deadline {
 public:
  /// @param timeout_s  time limit, at least 30 s; 0: none.
  /// @param what       as "started", for the message.
  Deadline(double timeout_s, const char* what)
  {
    if (timeout_s == 0) return;
    const double limit_s = std::clamp(timeout_s, 30.0, 1e9);
    // The first process that gives up ends the others, and speaks alone.
    const int rank = launched_rank();
    const std::chrono::duration<double> patience(limit_s + 0.1 * std::min(rank, 100));
    thread_ = std::thread([passed = passed_.get_future(), rank, limit_s, patience, what] {
      if (passed.wait_for(patience) == std::future_status::ready) return;
      print_text(stderr,
                 fmt::format("rank {}: MPI has not {} within {:.0f} s (--timeout, at least 30 s). It waits for all "
                             "processes of the job: one has died,\n"
                             "  cannot be reached, or runs another program. The job ends with status {}.\n",
                             rank, what, limit_s, static_cast<int>(exit_watchdog)));
      std::_Exit(exit_watchdog);
    });
  }
  ~Deadline()
  {
    passed_.set_value();
    if (thread_.joinable()) thread_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::promise<void> passed_;
  std::thread thread_;
};

/// Called by all ranks after their work: checks that all messages between them were received. Rank 0 reports lost ones.
/// @return  the status of this rank, or exit_failure if a message was not received.
int end_job(const Session& session, Watchdog& watchdog, int status)
{
  watchdog.end_together();
  const std::string lost = lost_messages(Communicator::world(), flight_recorder().counts());
  if (lost.empty()) return status;
  if (session.rank() == 0) print_text(stderr, lost + ".\n");
  return std::max(status, static_cast<int>(exit_failure));
}

/// Reason why the rank cannot run, according to these checks; empty if it can.
std::optional<Stop> refusal(const std::function<void()>& checks)
{
  const Phase phase("is checking its options and files");
  try {
    checks();
    return std::nullopt;
  } catch (const HelpRequest& help) {
    return Stop{exit_success, help.what()};
  } catch (const UserError& error) {
    return Stop{exit_user_error, error.what()};
  }
}

/// Takes the numbers of standard streams that are closed, so that no file gets them; writes to these streams fail.
void occupy_standard_streams()
{
  for (int id = 0; id <= STDERR_FILENO; ++id)
    if (fcntl(id, F_GETFD) < 0) check_system(open("/dev/null", O_RDONLY) == id, "open /dev/null");
}

/// Refuses limits of this process with which the MPI library would die as it starts, often by a signal.
/// @throws UserError  for the first of them.
void check_limits()
{
  const auto check = [](auto resource, const char* command, rlim_t unit, rlim_t least) {
    rlimit limit{};
    check_system(getrlimit(resource, &limit) == 0, "ask for the limits of this process");
    if (limit.rlim_cur / unit < least)
      throw UserError(fmt::format("{} {}: MPI needs {} to start.", command, limit.rlim_cur / unit, least),
                      fmt::format("Raise the limit first, as with {} {}.", command, 4 * least));
  };
  check(RLIMIT_NOFILE, "ulimit -n", 1, 32);
  check(RLIMIT_AS, "ulimit -v", 1024, has_launcher() ? 1 << 20 : 1 << 17);
}

/// Checks the files that the options name.
/// @return  the locks of those that will be written.
std::vector<FileLock> check_and_lock(const OptionTable& options)
{
  const std::vector<NamedFile> files = options.files();
  check_files(files);
  return options.is_set("dry-run") ? std::vector<FileLock>() : lock_files(files);
}

/// Message of the lowest rank that cannot run, the same on all ranks; empty if all can, and all run the same program.
std::optional<Stop> agree(const Session& session, const std::string& program, const std::optional<Stop>& own)
{
  const Phase phase("waits for the other ranks' checks");
  try {
    check_agreement(Communicator::world(),
                    {{"the program that they run", program},
                     {"the revision of their program's sources", std::string(revision())},
                     {"--help", own && own->status == exit_success ? "with it" : "without it"}});
  } catch (const UserError& error) {
    return Stop{exit_user_error, error.what()};
  }
  int speaker = own ? session.rank() : session.ranks();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &speaker, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "agreeing to run");
  if (speaker == session.ranks()) return std::nullopt;

  Stop stop = session.rank() == speaker ? *own : Stop{};
  int numbers[2] = {stop.status, static_cast<int>(stop.text.size())};
  check_mpi(MPI_Bcast(numbers, 2, MPI_INT, speaker, MPI_COMM_WORLD), "sending the reason not to run");
  stop.status = numbers[0];
  stop.text.resize(static_cast<std::size_t>(numbers[1]));
  check_mpi(MPI_Bcast(stop.text.data(), numbers[1], MPI_CHAR, speaker, MPI_COMM_WORLD),
            "sending the reason not to run");
  if (speaker > 0) stop.text += fmt::format("\n       (said by rank {} of {})", speaker, session.ranks());
  return stop;
}

/// Rank 0 says why the job does not run.
/// @return  the exit status.
int tell(const Session& session, const Stop& stop)
{
  if (session.rank() != 0) return stop.status;
  std::FILE* const out = stop.status == exit_success ? stdout : stderr;
  check_system(print_text(out, stop.text + "\n") || out == stderr, "print the help");
  if (stop.status != exit_success && has_launcher() && on_terminal(STDERR_FILENO))
    print_text(out, "       (The launcher's own message below is only a consequence.)\n");
  return stop.status;
}

}  // namespace

int run_program(int argc, char** argv, OptionTable& options, const std::function<void(const Session&)>& check,
                const std::function<int(Session&)>& run)
{
  try {
    occupy_standard_streams();
    if (const std::optional<Stop> limited = refusal(check_limits)) {
      // The first process speaks. When it has ended, the launcher ends the others, unless they alone are limited.
      std::this_thread::sleep_for(std::chrono::seconds(launched_rank() > 0 ? 5 : 0));
      print_text(stderr, limited->text + "\n");
      return limited->status;
    }
    std::optional<Stop> own = refusal([&] { options.parse(argc, argv); });
    const nlohmann::json asked = own ? nlohmann::json::object() : options.json();
    const double timeout_s = std::max(asked.value("timeout", Watchdog::default_timeout_s), 0.0);
    std::optional<Deadline> deadline(std::in_place, timeout_s, "started");
    Session session(argc, argv);       // destroyed before the deadline for its end
    std::optional<Watchdog> watchdog;  // a single rank needs none
    if (session.ranks() > 1) watchdog.emplace(flight_recorder(), timeout_s);
    deadline.reset();
    std::vector<FileLock> locks;  // locks of rank 0, which renames all files
    if (!own)
      own = refusal([&] {
        if (session.rank() == 0) locks = check_and_lock(options);
        check(session);
      });
    const std::optional<Stop> stop = agree(session, options.program(), own);
    int status = stop ? tell(session, *stop) : run(session);
    if (!stop && watchdog) status = end_job(session, *watchdog, status);
    deadline.emplace(timeout_s, "ended");
    return status;
  } catch (...) {
    abort_job();
  }
}

int run_file_program(int argc, char** argv, OptionTable& options,
                     const std::function<void(const std::vector<std::string>& files)>& check,
                     const std::function<int(const std::vector<std::string>& files)>& run)
{
  std::vector<char*> words(argv, argv + argc);
  const auto first_file =
      std::stable_partition(words.begin() + std::min(argc, 1), words.end(),
                            [](const char* word) { return std::string_view(word).starts_with("--"); });
  const std::vector<std::string> files(first_file, words.end());
  words.erase(first_file, words.end());
  words.push_back(nullptr);
  return run_program(
      argc - static_cast<int>(files.size()), words.data(), options,
      [&](const Session& session) {
        if (session.rank() == 0) check(files);
      },
      [&](Session& session) { return session.rank() == 0 ? run(files) : exit_success; });
}

}  // namespace rankwise
