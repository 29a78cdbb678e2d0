#include "lessons/00_mpi/ranks.hpp"

#include <numeric>

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

std::vector<std::string> lines_of_ranks(const std::string& own, MPI_Comm comm)
{
  const auto N = static_cast<std::size_t>(ranks_of(comm));
  const int length = static_cast<int>(own.size());
  std::vector<int> lengths(N), places(N, 0);
  check_mpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm), "gathering lengths of lines");
  std::exclusive_scan(lengths.begin(), lengths.end(), places.begin(), 0);
  std::string all(static_cast<std::size_t>(places.back() + lengths.back()), ' ');
  check_mpi(MPI_Gatherv(own.data(), length, MPI_CHAR, all.data(), lengths.data(), places.data(), MPI_CHAR, 0, comm),
            "gathering lines");
  std::vector<std::string> lines;
  for (std::size_t r = 0; r < N && rank_in(comm) == 0; ++r)
    lines.push_back(all.substr(static_cast<std::size_t>(places[r]), static_cast<std::size_t>(lengths[r])));
  return lines;
}

std::vector<std::vector<std::int64_t>> rows_of_ranks(const std::vector<std::int64_t>& own, MPI_Comm comm)
{
  const auto N = static_cast<std::size_t>(ranks_of(comm));
  const int length = static_cast<int>(own.size());
  std::vector<std::int64_t> all(N * own.size());
  check_mpi(MPI_Gather(own.data(), length, MPI_INT64_T, all.data(), length, MPI_INT64_T, 0, comm),
            "gathering numbers");
  std::vector<std::vector<std::int64_t>> rows;
  for (std::size_t r = 0; r < N && rank_in(comm) == 0; ++r)
    rows.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(r * own.size()),
                      all.begin() + static_cast<std::ptrdiff_t>((r + 1) * own.size()));
  return rows;
}

bool on_all(bool holds, MPI_Comm comm)
{
  int all = holds ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_LAND, comm), "agreeing");
  return all != 0;
}

std::vector<std::int64_t> messages_sent()
{
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks_of(MPI_COMM_WORLD)), 0);
  for (const MessageCount& count : flight_recorder().counts())
    if (count.group == "MPI" && count.peer >= 0) sent[static_cast<std::size_t>(count.peer)] += count.sent;
  return sent;
}

}  // namespace rankwise
