#include "common/program.hpp"

#include <cstdio>
#include <exception>
#include <optional>
#include <vector>

#include "common/error.hpp"

namespace rankwise {

namespace {

/// Why a rank does not want to run, and the status with which the program ends for that.
struct Stop {
  int status;
  std::string text;
};

/// Reads the options and looks for what cannot be; nothing when the rank is ready to run. Sends no message.
/// @param locks  gets those of the files that the run will write, on rank 0, which gives all of them their names.
std::optional<Stop> prepare(const Session& session, int argc, char** argv, OptionTable& options,
                            const std::function<void(const Session&)>& check, std::vector<FileLock>& locks)
{
  try {
    options.parse(argc, argv);
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

/// What the lowest rank that does not want to run has to say, the same on all ranks; nothing when all want to.
std::optional<Stop> agree(const Session& session, const std::optional<Stop>& own)
{
  int speaker = own ? session.rank() : session.ranks();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &speaker, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "agreeing to run");
  if (speaker == session.ranks()) return std::nullopt;

  Stop stop = session.rank() == speaker ? *own : Stop{};
  int numbers[2] = {stop.status, static_cast<int>(stop.text.size())};
  check_mpi(MPI_Bcast(numbers, 2, MPI_INT, speaker, MPI_COMM_WORLD), "telling why not to run");
  stop.status = numbers[0];
  stop.text.resize(static_cast<std::size_t>(numbers[1]));
  check_mpi(MPI_Bcast(stop.text.data(), numbers[1], MPI_CHAR, speaker, MPI_COMM_WORLD), "telling why not to run");
  return stop;
}

}  // namespace

int run_program(int argc, char** argv, OptionTable& options, const std::function<void(const Session&)>& check,
                const std::function<int(Session&)>& run)
{
  try {
    Session session(argc, argv);
    std::vector<FileLock> locks;
    if (const std::optional<Stop> stop = agree(session, prepare(session, argc, argv, options, check, locks))) {
      if (session.rank() == 0) {
        std::FILE* out = stop->status == exit_success ? stdout : stderr;
        std::fputs((stop->text + "\n").c_str(), out);
        std::fflush(out);
      }
      return stop->status;
    }
    return run(session);
  } catch (...) {
    abort_job(describe(std::current_exception()));
  }
}

}  // namespace rankwise
