#include "common/in_turn.hpp"

#include <mpi.h>

namespace rankwise {

void in_turn(const Session& session, const std::function<void()>& work)
{
  constexpr int tag = 1;
  if (session.rank() > 0)
    check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, session.rank() - 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
              "waiting for my turn");
  work();
  if (session.rank() + 1 < session.ranks())
    check_mpi(MPI_Send(nullptr, 0, MPI_BYTE, session.rank() + 1, tag, MPI_COMM_WORLD), "passing the turn on");
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "waiting for the last turn");
}

}  // namespace rankwise
