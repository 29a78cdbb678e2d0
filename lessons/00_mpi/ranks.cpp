#include "lessons/00_mpi/ranks.hpp"

#include "common/messages/watchdog/flight_recorder.hpp"
#include "common/program/session.hpp"

namespace rankwise {

int ranks_of(MPI_Comm comm)
{
  int ranks = 0;
  check_mpi(MPI_Comm_size(comm, &ranks), "asking for the number of ranks");
  return ranks;
}

int rank_in(MPI_Comm comm)
{
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "asking for this rank");
  return rank;
}

std::vector<std::int64_t> messages_sent()
{
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks_of(MPI_COMM_WORLD)), 0);
  for (const MessageCount& count : flight_recorder().counts())
    if (count.group == "MPI" && count.peer >= 0) sent[static_cast<std::size_t>(count.peer)] += count.sent;
  return sent;
}

}  // namespace rankwise
