#include "lessons/00_mpi/ring_sum.hpp"

#include <vector>

#include "common/base/error.hpp"
#include "common/base/partition.hpp"
#include "common/program/session.hpp"

namespace rankwise {

void ring_sum(std::span<double> values, MPI_Comm comm)
{
  // BEGIN EXERCISE 00.5
  int N = 0, r = 0;
  check_mpi(MPI_Comm_size(comm, &N), "asking for the number of ranks");
  check_mpi(MPI_Comm_rank(comm, &r), "asking for this rank");
  const Partition partition(static_cast<std::int64_t>(values.size()), N);
  const auto shard = [&](int s) {  // -N <= s < N
    const Range range = partition.shard((s + N) % N);
    return values.subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.count));
  };
  const auto exchange = [&](std::span<const double> sent, std::span<double> received) {
    constexpr int tag = 0;
    check_mpi(
        MPI_Sendrecv(sent.data(), static_cast<int>(sent.size()), MPI_DOUBLE, (r + 1) % N, tag, received.data(),
                     static_cast<int>(received.size()), MPI_DOUBLE, (r + N - 1) % N, tag, comm, MPI_STATUS_IGNORE),
        "passing a shard around the ring");
  };
  // Reduce-scatter: a partial sum comes in, this rank's own values are added, and in the next step it is sent on.
  for (int k = 0; k < N - 1; ++k) {
    const std::span<double> sum = shard(r - k - 2);
    std::vector<double> arrived(sum.size());
    exchange(shard(r - k - 1), arrived);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += arrived[i];
  }
  // All-gather: a rank first sends its own complete shard, then always the one received last.
  for (int k = 0; k < N - 1; ++k) exchange(shard(r - k), shard(r - k - 1));
  // END EXERCISE
}

}  // namespace rankwise
