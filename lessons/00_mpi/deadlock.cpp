#include "lessons/00_mpi/deadlock.hpp"

#include <cstddef>

#include "common/program/session.hpp"
#include "lessons/00_mpi/ranks.hpp"

namespace rankwise {

namespace {

constexpr int tag = 0;

}  // namespace

std::vector<int> try_circle(std::int64_t bytes, Sending sending, MPI_Comm comm)
{
  const int N = ranks_of(comm), r = rank_in(comm), next = (r + 1) % N, previous = (r + N - 1) % N;
  const int count = static_cast<int>(bytes);
  const std::vector<std::byte> sent(static_cast<std::size_t>(bytes), std::byte{1});
  std::vector<std::byte> received(sent.size());

  // Each rank sends. The call returns at once; whether a blocking send would have returned, the request says.
  MPI_Request request = MPI_REQUEST_NULL;
  const auto start = sending == Sending::synchronous ? MPI_Issend : MPI_Isend;
  check_mpi(start(sent.data(), count, MPI_BYTE, next, tag, comm, &request), "sending around the circle");
  // Two barriers give each library the time to take a copy of what arrives, if it does.
  for (int i = 0; i < 2; ++i) check_mpi(MPI_Barrier(comm), "letting messages arrive");
  int ended = 0;
  check_mpi(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "asking whether the send has ended");

  // All ranks have looked before the first one receives.
  const int waits = ended == 0 ? 1 : 0;
  std::vector<int> all(static_cast<std::size_t>(N));
  check_mpi(MPI_Allgather(&waits, 1, MPI_INT, all.data(), 1, MPI_INT, comm), "comparing the sends of all ranks");

  // The way out: every rank receives, so every send ends.
  check_mpi(MPI_Recv(received.data(), count, MPI_BYTE, previous, tag, comm, MPI_STATUS_IGNORE),
            "receiving around the circle");
  check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "waiting for the send");
  return all;
}

void hang(MPI_Comm comm)
{
  const int N = ranks_of(comm), r = rank_in(comm);
  double value = r;
  check_mpi(MPI_Ssend(&value, 1, MPI_DOUBLE, (r + 1) % N, tag, comm), "sending first");
  check_mpi(MPI_Recv(&value, 1, MPI_DOUBLE, (r + N - 1) % N, tag, comm, MPI_STATUS_IGNORE), "receiving afterwards");
}

}  // namespace rankwise
