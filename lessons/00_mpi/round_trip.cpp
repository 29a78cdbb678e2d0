#include "lessons/00_mpi/round_trip.hpp"

#include "common/base/error.hpp"
#include "common/program/session.hpp"
#include "lessons/00_mpi/ranks.hpp"

namespace rankwise {

double round_trip_s(std::span<std::byte> message, int partner, MPI_Comm comm)
{
  // BEGIN EXERCISE 00.2
  int r = 0;
  check_mpi(MPI_Comm_rank(comm, &r), "asking for this rank");
  constexpr int tag = 0;
  const int bytes = static_cast<int>(message.size());
  const auto send = [&] {
    check_mpi(MPI_Send(message.data(), bytes, MPI_BYTE, partner, tag, comm), "sending a message to and fro");
  };
  const auto receive = [&] {
    check_mpi(MPI_Recv(message.data(), bytes, MPI_BYTE, partner, tag, comm, MPI_STATUS_IGNORE),
              "receiving a message to and fro");
  };
  if (r > partner) {
    receive();
    send();
    return 0;
  }
  const double start_s = MPI_Wtime();
  send();
  receive();
  return MPI_Wtime() - start_s;
  // END EXERCISE
}

std::vector<MessageTime> measure_messages(int trips, MPI_Comm comm)
{
  constexpr std::int64_t shortest = 8, longest = 4 << 20;
  constexpr int first_trips = 10;
  const int r = rank_in(comm);
  std::vector<std::byte> message(longest, std::byte{1});
  std::vector<MessageTime> all;
  for (std::int64_t bytes = shortest; bytes <= longest; bytes *= 2) {
    std::vector<double> times;
    for (int i = 0; i < first_trips + trips && r < 2; ++i) {
      const double time_s = round_trip_s(std::span(message).first(static_cast<std::size_t>(bytes)), 1 - r, comm);
      if (i >= first_trips) times.push_back(time_s / 2);
    }
    double time_s = r == 0 ? median(times) : 0;
    check_mpi(MPI_Bcast(&time_s, 1, MPI_DOUBLE, 0, comm), "sharing the time of a message");
    all.push_back({bytes, time_s});
  }
  return all;
}

}  // namespace rankwise
