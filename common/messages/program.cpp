#include "common/messages/program.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "common/base/activity.hpp"
#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/messages/agreement.hpp"
#include "common/messages/job_report.hpp"
#include "common/messages/watchdog/message_counts.hpp"
#include "common/messages/watchdog/watchdog.hpp"
#include "common/program/file_arguments.hpp"
#include "common/program/launcher.hpp"
#include "common/program/terminal.hpp"

namespace rankwise {

namespace {

/// Message of a rank that cannot run, and the program's exit status.
struct Stop {
  int status;
  std::string text;
};

/// The watchdog of a job of several ranks; a single rank needs none.
class WatchedJob {
 public:
  explicit WatchedJob(const Session& session)
  {
    if (session.ranks() > 1) watchdog_.emplace(flight_recorder());
  }

  /// Sets the timeout from option `--timeout`, if the program has it.
  void take_timeout(const OptionTable& options)
  {
    const double timeout_s = options.json().value("timeout", Watchdog::default_timeout_s);
    if (watchdog_) watchdog_->set_timeout(std::max(timeout_s, 0.0));
  }

  /// Waits for all ranks, then checks that all messages between them were received; rank 0 reports lost ones.
  /// @param status  status of this rank, which has finished its work.
  /// @return  the same status, or exit_failure if a message was not received.
  int end(const Session& session, int status)
  {
    if (!watchdog_) return status;
    watchdog_->end_together();
    const std::string lost = lost_messages(Communicator::world(), flight_recorder().counts());
    if (lost.empty()) return status;
    if (session.rank() == 0) std::fputs((lost + ".\n").c_str(), stderr);
    return std::max(status, static_cast<int>(exit_failure));
  }

 private:
  std::optional<Watchdog> watchdog_;
};

/// Parses and checks the options; empty if the rank is ready to run. Sends no message.
/// @param locks  on rank 0, receives the locks of the files that the run will write; rank 0 renames all of them.
std::optional<Stop> prepare(const Session& session, int argc, char** argv, OptionTable& options,
                            const std::function<void(const Session&)>& check, std::vector<FileLock>& locks,
                            WatchedJob& job)
{
  const Phase phase("is checking its options and files");
  try {
    options.parse(argc, argv);
    job.take_timeout(options);
    if (session.rank() == 0) {
      const std::vector<NamedFile> files = options.files();
      check_files(files);
      if (!options.is_set("dry-run")) locks = lock_files(files);
    }
    check(session);
    return std::nullopt;
  } catch (const HelpRequest& help) {
    return Stop{exit_success, help.what()};
  } catch (const UserError& error) {
    return Stop{exit_user_error, error.what()};
  }
}

/// Message of the lowest rank that cannot run, the same on all ranks; empty if all can, and all run the same program.
std::optional<Stop> agree(const Session& session, const std::string& program, const std::optional<Stop>& own)
{
  const Phase phase("waits for the other ranks' checks");
  try {
    check_agreement(Communicator::world(), {{"the program that they run", program},
                                            {"the revision of their program's sources", std::string(revision())}});
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

/// Whether everything that was printed to a stream has been written.
bool is_written(std::FILE* stream)
{
  return std::fflush(stream) == 0 && std::ferror(stream) == 0;
}

}  // namespace

int run_program(int argc, char** argv, OptionTable& options, const std::function<void(const Session&)>& check,
                const std::function<int(Session&)>& run)
{
  try {
    Session session(argc, argv);
    WatchedJob job(session);
    std::vector<FileLock> locks;
    if (const std::optional<Stop> stop =
            agree(session, options.program(), prepare(session, argc, argv, options, check, locks, job))) {
      if (session.rank() == 0) {
        std::FILE* out = stop->status == exit_success ? stdout : stderr;
        std::fputs((stop->text + "\n").c_str(), out);
        if (stop->status != exit_success && has_launcher() && on_terminal(STDERR_FILENO))
          std::fputs("       (The launcher's own message below is only a consequence.)\n", out);
        check_system(out == stderr || is_written(out), "print the help");
      }
      return stop->status;
    }
    return job.end(session, run(session));
  } catch (...) {
    abort_job(describe(std::current_exception()));
  }
}

int run_file_program(int argc, char** argv, OptionTable& options,
                     const std::function<void(const std::vector<std::string>& files)>& check,
                     const std::function<int(const std::vector<std::string>& files)>& run)
{
  FileArguments arguments(argc, argv);
  return run_program(
      arguments.count(), arguments.rest(), options,
      [&](const Session& session) {
        if (session.rank() == 0) check(arguments.files());
      },
      [&](Session& session) {
        const int status = session.rank() == 0 ? run(arguments.files()) : exit_success;
        check_system(is_written(stdout), "print the result");
        return status;
      });
}

}  // namespace rankwise
