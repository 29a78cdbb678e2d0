#pragma once

#include <string_view>

/// @file
/// A process without a launcher, and one whose launcher belongs to another MPI library than this build.

namespace rankwise {

/// True if a launcher of MPI, such as mpirun, started this process.
bool has_launcher();

/// The number that the launcher gave this process, before MPI tells its rank; 0 without a launcher.
int launched_rank();

/// Before MPI_Init(): tells Open MPI 4 that a process without a launcher is one rank that starts no others. It would start a
/// daemon for them; without the daemon, all such processes would share one temporary folder, and one that ends could remove it
/// while another starts. They need none.
void prepare_single_rank();

/// Rejects a job of one rank that was meant to have more: the launcher of another MPI library starts N processes,
/// each of which forms a job of one rank.
///
/// It is detected by the environment variables that launchers set for their processes: OMPI_COMM_WORLD_SIZE (Open
/// MPI), PMI_SIZE and MPI_LOCALNRANKS (MPICH and its derivatives), SLURM_STEP_NUM_TASKS (srun). The variables of
/// this MPI library's own launcher take precedence. An allocation of several tasks (SLURM_NTASKS) is not a
/// launcher: a single process in a batch script is allowed.
/// @param ranks    number of ranks of the job.
/// @param library  result of MPI_Get_library_version().
/// @throws UserError  in process 1; the other processes exit silently with the same status some seconds later,
///                    unless the launcher has killed them by then.
void check_launcher(int ranks, std::string_view library);

}  // namespace rankwise
