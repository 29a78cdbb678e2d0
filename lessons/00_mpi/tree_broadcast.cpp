#include "lessons/00_mpi/tree_broadcast.hpp"

#include "common/base/error.hpp"
#include "common/program/session.hpp"

namespace rankwise {

void tree_broadcast(std::span<double> values, int root, MPI_Comm comm)
{
  // BEGIN EXERCISE 00.4
  int N = 0, r = 0;
  check_mpi(MPI_Comm_size(comm, &N), "asking for the number of ranks");
  check_mpi(MPI_Comm_rank(comm, &r), "asking for this rank");
  constexpr int tag = 0;
  const int n = static_cast<int>(values.size());
  const int k = (r - root + N) % N;                            // this rank, counted from the root
  const auto rank_of = [&](int j) { return (j + root) % N; };  // and back
  // Before the step of distance d, ranks 0 .. d-1 have the values: each sends them d ranks further.
  for (int d = 1; d < N; d *= 2) {
    if (k < d && k + d < N)
      check_mpi(MPI_Send(values.data(), n, MPI_DOUBLE, rank_of(k + d), tag, comm), "sending the broadcast on");
    if (d <= k && k < 2 * d)
      check_mpi(MPI_Recv(values.data(), n, MPI_DOUBLE, rank_of(k - d), tag, comm, MPI_STATUS_IGNORE),
                "receiving the broadcast");
  }
  // END EXERCISE
}

}  // namespace rankwise
