#include "common/program/rank_failure.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <vector>

#include "common/program/session.hpp"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace rankwise {

namespace {

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
constexpr bool built_to_survive = true;
#else
constexpr bool built_to_survive = false;
#endif

/// The communicators in use.
struct InUse {
  std::mutex mutex;
  std::vector<MPI_Comm> communicators;
};

InUse& in_use()
{
  static InUse all;
  return all;
}

}  // namespace

bool can_survive()
{
  // mpirun sets it for its processes.
  const char* const asked = std::getenv("OMPI_MCA_mpi_ft_enable");
  return built_to_survive && asked != nullptr && std::string_view(asked) == "1";
}

std::string why_not_survive()
{
  if (built_to_survive)
    return "Start it with mpirun --with-ft ulfm, which lets ranks live on when another one dies.";
  return "It needs an MPI library with User-Level Failure Mitigation (ULFM), such as Open MPI 5. This program was "
         "built with "
         "another one. Leave --elastic out; --checkpoint saves the run so that it can be resumed.";
}

void revoke_on_failure(MPI_Comm communicator)
{
  const std::lock_guard lock(in_use().mutex);
  in_use().communicators.push_back(communicator);
}

void forget_communicator(MPI_Comm communicator)
{
  const std::lock_guard lock(in_use().mutex);
  std::erase(in_use().communicators, communicator);
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI

bool is_rank_failure(int code)
{
  int kind = MPI_SUCCESS;
  if (MPI_Error_class(code, &kind) != MPI_SUCCESS) return false;
  if (kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING || kind == MPIX_ERR_REVOKED) return true;
  // Some collectives of Open MPI 5.0 return another code.
  int revoked = 0, dead = 0;
  MPI_Group failed = MPI_GROUP_EMPTY;
  MPIX_Comm_is_revoked(job_ranks(), &revoked);
  MPIX_Comm_get_failed(job_ranks(), &failed);
  MPI_Group_size(failed, &dead);
  if (failed != MPI_GROUP_EMPTY) MPI_Group_free(&failed);
  return revoked != 0 || dead > 0;
}

void revoke_all()
{
  const std::lock_guard lock(in_use().mutex);
  for (MPI_Comm communicator : in_use().communicators) MPIX_Comm_revoke(communicator);
}

bool all_agree(MPI_Comm communicator, bool own)
{
  // The code says whether ranks have died; what the living ones agree on holds in any case.
  int all = own ? 1 : 0;
  MPIX_Comm_agree(communicator, &all);
  return all != 0;
}

MPI_Comm survivors_of(MPI_Comm communicator)
{
  MPI_Comm alive = MPI_COMM_NULL;
  check_mpi(MPIX_Comm_shrink(communicator, &alive), "making a communicator of the ranks that are alive");
  return alive;
}

#else

bool is_rank_failure(int)
{
  return false;
}

void revoke_all() {}

bool all_agree(MPI_Comm, bool own)
{
  return own;
}

MPI_Comm survivors_of(MPI_Comm)
{
  throw Error("this MPI library cannot shrink a communicator");
}

#endif

void wait_for_failure(MPI_Request& request)
{
  if (request != MPI_REQUEST_NULL) MPI_Wait(&request, MPI_STATUS_IGNORE);
}

}  // namespace rankwise
