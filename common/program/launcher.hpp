#pragma once

#include <string_view>

/// @file
/// Whether the launcher that started this process speaks with the MPI library that the program is built for.

namespace rankwise {

/// Refuses a job of one rank that was meant to have more: a launcher of another MPI library starts N processes, and each of
/// them believes that it is alone.
///
/// What counts are variables that a launcher sets for the processes of this very start: OMPI_COMM_WORLD_SIZE (Open MPI),
/// PMI_SIZE and MPI_LOCALNRANKS (MPICH and its kin), SLURM_STEP_NUM_TASKS (srun). What the MPI library's own launcher says
/// comes first. An allocation of several tasks (SLURM_NTASKS) is no launcher: one program in a batch script is welcome.
/// @param ranks    of the job.
/// @param library  what MPI_Get_library_version() says.
/// @throws UserError  in process 1; the other processes end silently with its status, some seconds later, unless the
///                    launcher has ended them by then.
void check_launcher(int ranks, std::string_view library);

}  // namespace rankwise
