#include "lessons/00_mpi/eager.hpp"

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "common/base/clock.hpp"
#include "common/program/session.hpp"
#include "lessons/00_mpi/ranks.hpp"

namespace rankwise {

namespace {

constexpr int data_tag = 0, answer_tag = 1;

/// Receives the message on rank 1.
void receive(std::vector<std::byte>& message, MPI_Comm comm)
{
  check_mpi(
      MPI_Recv(message.data(), static_cast<int>(message.size()), MPI_BYTE, 0, data_tag, comm, MPI_STATUS_IGNORE),
      "receiving late");
}

}  // namespace

double late_receiver_s(std::int64_t bytes, Until until, double late_s, MPI_Comm comm)
{
  std::vector<std::byte> message(static_cast<std::size_t>(bytes), std::byte{1});
  double time_s = 0;
  check_mpi(MPI_Barrier(comm), "beginning together");
  if (rank_in(comm) == 0) {
    const Stopwatch clock;
    check_mpi(MPI_Send(message.data(), static_cast<int>(bytes), MPI_BYTE, 1, data_tag, comm), "sending early");
    time_s = clock.seconds();
  }
  if (rank_in(comm) == 1) {
    if (until == Until::asleep) std::this_thread::sleep_for(std::chrono::duration<double>(late_s));
    int found = 0;  // never: no rank sends a message with this tag
    for (const Stopwatch clock; until == Until::in_library && clock.seconds() < late_s;)
      check_mpi(MPI_Iprobe(0, answer_tag, comm, &found, MPI_STATUS_IGNORE), "asking for another message");
    receive(message, comm);
  }
  check_mpi(MPI_Bcast(&time_s, 1, MPI_DOUBLE, 0, comm), "sharing the time of a send");
  return time_s;
}

bool ends_alone(std::int64_t bytes, MPI_Comm comm)
{
  std::vector<std::byte> message(static_cast<std::size_t>(bytes), std::byte{1});
  const int r = rank_in(comm);
  MPI_Request request = MPI_REQUEST_NULL;
  if (r == 0)
    check_mpi(MPI_Isend(message.data(), static_cast<int>(bytes), MPI_BYTE, 1, data_tag, comm, &request),
              "sending early");
  // Ranks 0 and 1 exchange empty messages, twice: the second one of rank 1 leaves after the first one of rank 0 has
  // arrived there. Rank 1 asks for these only, so the long one is there and is not received.
  for (int i = 0; i < 2 && r < 2; ++i)
    check_mpi(MPI_Sendrecv(nullptr, 0, MPI_BYTE, 1 - r, answer_tag, nullptr, 0, MPI_BYTE, 1 - r, answer_tag, comm,
                           MPI_STATUS_IGNORE),
              "letting the message arrive");
  int ended = 0;
  if (r == 0) {
    check_mpi(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "asking whether the send has ended");
    check_mpi(MPI_Send(nullptr, 0, MPI_BYTE, 1, answer_tag, comm), "letting rank 1 receive");
    check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "waiting for the send");
  }
  if (r == 1) {
    check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, 0, answer_tag, comm, MPI_STATUS_IGNORE), "waiting before receiving");
    receive(message, comm);
  }
  check_mpi(MPI_Bcast(&ended, 1, MPI_INT, 0, comm), "sharing the answer");
  return ended != 0;
}

std::optional<EagerLimit> find_eager_limit(MPI_Comm comm)
{
  EagerLimit limit{.ends_alone = 1, .waits = 4 << 20};
  if (!ends_alone(limit.ends_alone, comm) || ends_alone(limit.waits, comm)) return std::nullopt;
  while (limit.waits - limit.ends_alone > 1) {
    const std::int64_t middle = (limit.ends_alone + limit.waits) / 2;
    (ends_alone(middle, comm) ? limit.ends_alone : limit.waits) = middle;
  }
  return limit;
}

}  // namespace rankwise
