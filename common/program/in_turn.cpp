#include "common/program/in_turn.hpp"

#include <mpi.h>
#include <optional>

#include "common/base/activity.hpp"

namespace rankwise {

void in_turn(const Session& session, const std::function<void()>& work)
{
  constexpr int tag = 1;
  std::optional<Phase> phase("waits for its turn");
  if (session.rank() > 0)
    check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, session.rank() - 1, tag, job_ranks(), MPI_STATUS_IGNORE),
              "waiting for my turn");
  phase.emplace("has its turn");
  work();
  phase.emplace("waits for the last turn");
  if (session.rank() + 1 < session.ranks())
    check_mpi(MPI_Send(nullptr, 0, MPI_BYTE, session.rank() + 1, tag, job_ranks()), "passing the turn on");
  check_mpi(MPI_Barrier(job_ranks()), "waiting for the last turn");
}

}  // namespace rankwise
