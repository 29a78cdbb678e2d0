#include "lessons/02_collectives/message_times.hpp"

#include <array>

#include "common/program/time_ledger.hpp"

namespace rankwise {

namespace {

constexpr std::array<std::int64_t, 8> message_sizes{8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20};
constexpr int round_trips = 31, first_trips = 10;  // timed round trips, and untimed ones to warm up

/// Half of the median round trip for one size.
double message_time(Transport& transport, const Tensor& message, int partner)
{
  std::vector<double> times;
  for (int i = 0; i < first_trips + round_trips; ++i) {
    const Stopwatch clock;
    if (transport.rank() < partner) transport.send(message, partner);
    transport.receive(message, partner);
    if (transport.rank() > partner) transport.send(message, partner);
    if (i >= first_trips) times.push_back(clock.seconds() / 2);
  }
  return median(times);
}

}  // namespace

std::vector<MessageTime> ping_pong(Group& group)
{
  const int partner = group.rank() ^ 1;
  const bool paired = partner < group.ranks();
  const Buffer memory(group.memory(), Category::workspace, DType::u8, {message_sizes.back()}, "message to and fro");
  std::vector<MessageTime> all;
  for (const std::int64_t bytes : message_sizes) {
    double time_s = paired ? message_time(group.transport(), memory.tensor().slice({0, bytes}), partner) : 0;
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &time_s, 1, MPI_DOUBLE, MPI_SUM, group.communicator().handle()),
              "adding up the times of messages");
    const int in_pairs = group.ranks() / 2 * 2;  // an odd rank has no partner
    all.push_back({bytes, time_s / in_pairs});
  }
  return all;
}

}  // namespace rankwise
