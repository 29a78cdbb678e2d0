#include "lessons/10_3d_parallel/mesh_traffic.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/job_report.hpp"

namespace rankwise {

Sent& Sent::operator+=(const Sent& other)
{
  traffic += other.traffic;
  to_ranks.resize(std::max(to_ranks.size(), other.to_ranks.size()));
  for (std::size_t r = 0; r < other.to_ranks.size(); ++r) to_ranks[r] += other.to_ranks[r];
  return *this;
}

Sent Sent::operator-(const Sent& before) const
{
  Sent difference{traffic - before.traffic, to_ranks};
  for (std::size_t r = 0; r < before.to_ranks.size(); ++r) difference.to_ranks[r] -= before.to_ranks[r];
  return difference;
}

Sent sent_in(const TrafficLedger& ledger, const std::vector<std::string>& groups, int ranks)
{
  Sent sent{{}, std::vector<std::int64_t>(static_cast<std::size_t>(ranks))};
  for (const std::string& group : groups)
    for (const char* level : {"", " inside", " between"}) {
      sent.traffic += ledger.of(group + level);
      for (const auto& [receiver, bytes] : ledger.receivers_of(group + level))
        sent.to_ranks[static_cast<std::size_t>(receiver)] += bytes;
    }
  return sent;
}

void report_receivers(Report& report, const Session& session, const std::string& axis, const Sent& sent,
                      const std::vector<int>& peers)
{
  const int N = session.ranks();
  std::vector<std::int64_t> all(static_cast<std::size_t>(N * N));
  check_mpi(MPI_Allgather(sent.to_ranks.data(), N, MPI_INT64_T, all.data(), N, MPI_INT64_T, MPI_COMM_WORLD),
            "gathering who sent how much to whom");
  auto& rows = report.json()["receivers"][axis];
  for (auto row = all.begin(); row != all.end(); row += N) rows.push_back(std::vector<std::int64_t>(row, row + N));

  std::vector<int> receivers;
  for (int r = 0; r < N; ++r)
    if (sent.to_ranks[static_cast<std::size_t>(r)] > 0) receivers.push_back(r);
  const bool on_axis = std::ranges::includes(peers, receivers);
  report.check(fmt::format("who rank 0 sends to along {}", axis), fmt::format("among {}", fmt::join(peers, " ")),
               fmt::format("{}", fmt::join(receivers, " ")), on_all_ranks(on_axis));
}

}  // namespace rankwise
