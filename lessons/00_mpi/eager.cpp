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
    int found = 0;  // never: nobody sends a message with this tag
    for (const Stopwatch clock; until == Until::in_library && clock.seconds() < late_s;)
      check_mpi(MPI_Iprobe(0, answer_tag, comm, &found, MPI_STATUS_IGNORE), "asking for another message");
    receive(message, comm);
  }
  check_mpi(MPI_Bcast(&time_s, 1, MPI_DOUBLE, 0, comm), "sharing the time of a send");
  return time_s;
}

bool ends_alone(std::int64_t bytes, double limit_s, MPI_Comm comm)
{
  std::vector<std::byte> message(static_cast<std::size_t>(bytes), std::byte{1});
  int ended = 0;
  if (rank_in(comm) == 0) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(message.data(), static_cast<int>(bytes), MPI_BYTE, 1, data_tag, comm, &request),
              "sending early");
    for (const Stopwatch clock; ended == 0 && clock.seconds() < limit_s;)
      check_mpi(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "asking whether the send has ended");
    // Only this second message, with the answer, lets rank 1 receive the first one.
    check_mpi(MPI_Send(&ended, 1, MPI_INT, 1, answer_tag, comm), "sending the answer");
    check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "waiting for the send");
  }
  if (rank_in(comm) == 1) {
    check_mpi(MPI_Recv(&ended, 1, MPI_INT, 0, answer_tag, comm, MPI_STATUS_IGNORE), "receiving the answer");
    receive(message, comm);
  }
  check_mpi(MPI_Bcast(&ended, 1, MPI_INT, 0, comm), "sharing the answer");
  return ended != 0;
}

std::optional<EagerLimit> find_eager_limit(double limit_s, MPI_Comm comm)
{
  EagerLimit limit{.ends_alone = 1, .waits = 4 << 20};
  if (!ends_alone(limit.ends_alone, limit_s, comm) || ends_alone(limit.waits, limit_s, comm)) return std::nullopt;
  while (limit.waits - limit.ends_alone > 1) {
    const std::int64_t middle = (limit.ends_alone + limit.waits) / 2;
    (ends_alone(middle, limit_s, comm) ? limit.ends_alone : limit.waits) = middle;
  }
  return limit;
}

}  // namespace rankwise
