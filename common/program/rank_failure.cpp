#include "common/program/rank_failure.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/program/session.hpp"
#include "common/program/wait.hpp"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace rankwise {

// ---- Calls of ULFM ----------------------------------------------------------------------------------------------------

namespace {

#ifdef OMPI_HAVE_MPI_EXT_FTMPI

constexpr bool built_to_survive = true;

bool is_ulfm_error(int kind)
{
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING || kind == MPIX_ERR_REVOKED;
}

/// True if a rank of the communicator has died or the communicator was revoked.
bool has_failed(MPI_Comm communicator)
{
  int revoked = 0, dead = 0;
  MPI_Group failed = MPI_GROUP_EMPTY;
  MPIX_Comm_is_revoked(communicator, &revoked);
  MPIX_Comm_get_failed(communicator, &failed);
  MPI_Group_size(failed, &dead);
  if (failed != MPI_GROUP_EMPTY) MPI_Group_free(&failed);
  return revoked != 0 || dead > 0;
}

void revoke(MPI_Comm communicator)
{
  MPIX_Comm_revoke(communicator);
}

/// The logical "and" of the bits of all living ranks; works on a revoked communicator too.
unsigned agree(unsigned bits)
{
  int all = static_cast<int>(bits);
  // The returned code says that ranks have died; the living ones agree in any case.
  MPIX_Comm_agree(job_ranks(), &all);
  return static_cast<unsigned>(all);
}

int shrink(MPI_Comm communicator, MPI_Comm* alive)
{
  return MPIX_Comm_shrink(communicator, alive);
}

#else  // the calls of a library without it: no rank ever fails alone

constexpr bool built_to_survive = false;

bool is_ulfm_error(int)
{
  return false;
}

bool has_failed(MPI_Comm)
{
  return false;
}

void revoke(MPI_Comm) {}

unsigned agree(unsigned bits)
{
  return bits;
}

int shrink(MPI_Comm, MPI_Comm*)
{
  return MPI_ERR_OTHER;
}

#endif

}  // namespace

bool can_survive()
{
  static const bool can = [] {
    const char* const asked = std::getenv("OMPI_MCA_mpi_ft_enable");  // mpirun sets it for its processes
    return built_to_survive && asked != nullptr && std::string_view(asked) == "1";
  }();
  return can;
}

std::string why_not_survive()
{
  if (built_to_survive)
    return "Start it with mpirun --with-ft ulfm, which lets ranks live on when another one dies.";
  return "It needs an MPI library with User-Level Failure Mitigation (ULFM), such as Open MPI 5.\n"
         "This program was built with another one. Leave --elastic out; with --checkpoint a run can be resumed.";
}

bool is_rank_failure(int code)
{
  int kind = MPI_SUCCESS;
  if (!can_survive() || MPI_Error_class(code, &kind) != MPI_SUCCESS) return false;
  return is_ulfm_error(kind) || has_failed(job_ranks());  // some collectives of Open MPI 5.0 return another code
}

MPI_Comm survivors_of(MPI_Comm communicator)
{
  MPI_Comm alive = MPI_COMM_NULL;
  check_mpi(shrink(communicator, &alive), "making a communicator of the ranks that are alive");
  return alive;
}

// ---- Revoking -----------------------------------------------------------------------------------------------------------

namespace {

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

void revoke_all()
{
  const std::lock_guard lock(in_use().mutex);
  std::ranges::for_each(in_use().communicators, revoke);
}

// ---- Agreeing -----------------------------------------------------------------------------------------------------------

unsigned agree_on(unsigned bits)
{
  const unsigned all = agree(bits << 1 | 1);  // the lowest bit: no rank gives up
  if ((all & 1) != 0) return all >> 1;
  revoke_all();
  throw RankFailure("a rank has died", true, SourceLocation::current());
}

void give_up_agreement()
{
  agree(0);
}

// ---- Messages -----------------------------------------------------------------------------------------------------------

namespace {

/// True if all messages are complete; frees none.
bool are_complete(std::span<MPI_Request> requests)
{
  return std::ranges::all_of(requests, [](MPI_Request request) {
    int done = 1;
    if (request != MPI_REQUEST_NULL) MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
}

}  // namespace

void wait_or_fail(std::span<MPI_Request> requests, MPI_Comm communicator)
{
  bool failed = false;
  spin_then_nap([&] {
    const bool complete = are_complete(requests);
    failed = has_failed(communicator);
    return complete || failed;
  });
  if (!failed) return;
  revoke_all();
  throw RankFailure("a rank died while another one waited for messages", false, SourceLocation::current());
}

void wait_for_failure(std::span<MPI_Request> requests)
{
  constexpr double longest_s = 0.05;
  const Stopwatch clock;
  spin_then_nap([&] { return are_complete(requests) || clock.seconds() >= longest_s; });
  std::ranges::fill(requests, MPI_REQUEST_NULL);
}

}  // namespace rankwise
