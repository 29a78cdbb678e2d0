#include "common/program/in_turn.hpp"

#include <mpi.h>

#include "common/base/activity.hpp"

namespace rankwise {

void in_turn(const Session& session, const std::function<void()>& work)
{
  for (int rank = 0; rank < session.ranks(); ++rank) {
    const Phase phase(rank == session.rank() ? "has its turn" : "waits for its turn");
    if (rank == session.rank()) work();
    check_mpi(MPI_Barrier(job_ranks()), "waiting for the next turn");
  }
}

}  // namespace rankwise
