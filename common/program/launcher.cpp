#include "common/program/launcher.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/program/option_value.hpp"

namespace rankwise {

namespace {

/// Environment variables by which a launcher passes the number of processes and the number of this process.
struct Launcher {
  const char* processes;
  const char* process;
};
constexpr Launcher open_mpi = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"};
constexpr Launcher pmi = {"PMI_SIZE", "PMI_RANK"};
constexpr Launcher hydra = {"MPI_LOCALNRANKS", "MPI_LOCALRANKID"};
constexpr Launcher slurm = {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"};

/// The number in a variable; 0 if it is not set or not a number.
int number_in(const char* variable)
{
  const char* const text = std::getenv(variable);
  int number = 0;
  return text != nullptr && read_value(text, number).empty() ? number : 0;
}

/// True if this process is a task of the Slurm step itself. A shell or batch job started inside a step may have
/// inherited the step's variables, but Slurm renumbers its tasks from 0 and records which process it started.
bool is_task()
{
  return number_in(slurm.process) > 0 || number_in("SLURM_TASK_PID") == getpid();
}

[[noreturn]] void refuse(const Launcher& launcher, std::string_view library)
{
  // Process 1 reports: it exists in any case, while task 0 of a step may be a shell.
  if (number_in(launcher.process) != 1) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(exit_user_error);
  }
  std::string name(library.substr(0, library.find_first_of(",\n")));
  std::replace(name.begin(), name.end(), '\t', ' ');
  throw UserError(fmt::format("{} processes were started ({}), but each of them forms a job of one rank.",
                              number_in(launcher.processes), launcher.processes),
                  fmt::format("The launcher belongs to another MPI library than the program, which is built for\n"
                              "{}. Start it with the mpirun of that library, under Slurm with\n"
                              "`srun --mpi=TYPE` of a type that it knows (`srun --mpi=list`).\n"
                              "If each process is meant to be a separate run: env -u {} PROGRAM.",
                              name, launcher.processes));
}

}  // namespace

bool has_launcher()
{
  constexpr std::array marks = {"PMIX_RANK", pmi.process, open_mpi.process};
  return std::any_of(marks.begin(), marks.end(), [](const char* name) { return std::getenv(name) != nullptr; });
}

int launched_rank()
{
  for (const Launcher& launcher : {open_mpi, pmi, slurm})
    if (number_in(launcher.processes) > 1) return number_in(launcher.process);
  return 0;
}

void prepare_single_rank()
{
  if (has_launcher()) return;
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
  setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
}

void check_launcher(int ranks, std::string_view library)
{
  const Launcher& own = library.starts_with("Open MPI") ? open_mpi : pmi;
  if (ranks > 1 || number_in(own.processes) == 1) return;
  for (const Launcher& launcher : {open_mpi, pmi, hydra}) {
    if (number_in(launcher.processes) > 1) refuse(launcher, library);
  }
  if (number_in(slurm.processes) > 1 && is_task()) refuse(slurm, library);
}

}  // namespace rankwise
