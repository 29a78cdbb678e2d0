#include "lessons/02_collectives/fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/program/time_ledger.hpp"

namespace rankwise {

namespace {

constexpr std::array<std::int64_t, 8> message_sizes{8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20};
constexpr int round_trips = 31, first_trips = 10;  // timed round trips, and untimed ones to warm up

/// Sends a message to the partner and back.
void round_trip(Transport& transport, const Tensor& message, int partner)
{
  if (transport.rank() < partner) {
    transport.send(message, partner);
    transport.receive(message, partner);
  } else {
    transport.receive(message, partner);
    transport.send(message, partner);
  }
}

/// Half of the median round trip for one size.
double message_time(Transport& transport, const Tensor& message, int partner)
{
  std::array<double, round_trips> times{};
  for (int i = 0; i < first_trips; ++i) round_trip(transport, message, partner);
  for (double& time : times) {
    const Stopwatch clock;
    round_trip(transport, message, partner);
    time = clock.seconds() / 2;
  }
  std::nth_element(times.begin(), times.begin() + round_trips / 2, times.end());
  return times[round_trips / 2];
}

}  // namespace

std::vector<MessageTime> ping_pong(Group& group)
{
  const int partner = group.rank() ^ 1;
  std::vector<MessageTime> all;
  std::vector<double> sums;  // over the ranks with a partner
  const Buffer memory(group.memory(), Category::workspace, DType::u8, {message_sizes.back()}, "message to and fro");
  for (const std::int64_t bytes : message_sizes) {
    const Tensor message = memory.tensor().slice({0, bytes});
    const bool paired = partner < group.ranks();
    sums.push_back(paired ? message_time(group.transport(), message, partner) : 0);
    all.push_back({bytes, 0});
  }
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, sums.data(), static_cast<int>(sums.size()), MPI_DOUBLE, MPI_SUM,
                          group.communicator().handle()),
            "adding up the times of messages");
  const int paired_ranks = group.ranks() / 2 * 2;
  for (std::size_t i = 0; i < all.size(); ++i) all[i].time_s = sums[i] / paired_ranks;
  return all;
}

Fit fit_line(std::span<const MessageTime> times)
{
  // Divided by t, each message asks for alpha (1 / t) + beta (b / t) = 1: two normal equations.
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const MessageTime& m : times) {
    const double a = 1 / m.time_s, b = static_cast<double>(m.bytes) / m.time_s;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a1 += a;
    b1 += b;
  }
  const double determinant = aa * bb - ab * ab;
  Fit fit{{(a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant}};
  double squares = 0;
  for (const MessageTime& m : times) squares += std::pow(fit.line.time_s(m.bytes) / m.time_s - 1, 2);
  fit.residual = std::sqrt(squares / static_cast<double>(times.size()));
  return fit;
}

}  // namespace rankwise
