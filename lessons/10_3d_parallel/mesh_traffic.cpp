#include "lessons/10_3d_parallel/mesh_traffic.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/messages/job_report.hpp"

namespace rankwise {

std::vector<std::int64_t> sent_to_ranks(const TrafficLedger& ledger, const std::string& axis, int N)
{
  std::vector<std::int64_t> sent(static_cast<std::size_t>(N));
  for (const auto& [group, collectives] : ledger.all())
    if (group == axis || group.starts_with(axis + " "))
      for (const auto& [receiver, bytes] : ledger.receivers_of(group))
        sent[static_cast<std::size_t>(receiver)] += bytes;
  return sent;
}

CountedByReceiver::CountedByReceiver(Run& run, std::string axis, Receivers& receivers)
    : run_(run),
      axis_(std::move(axis)),
      receivers_(receivers),
      before_(sent_to_ranks(run.messages.traffic(), axis_, run.session.ranks())),
      counted_(run.count(axis_))
{
  const bool first_of_step = !run.sent.contains(axis_);
  if (first_of_step) receivers_[axis_].assign(before_.size(), 0);
}

CountedByReceiver::~CountedByReceiver()
{
  const std::vector<std::int64_t> now = sent_to_ranks(run_.messages.traffic(), axis_, run_.session.ranks());
  std::vector<std::int64_t>& sum = receivers_[axis_];
  for (std::size_t r = 0; r < now.size(); ++r) sum[r] += now[r] - before_[r];
}

void report_receivers(Report& report, const std::string& axis, const std::vector<std::int64_t>& sent,
                      const std::vector<int>& peers)
{
  const int N = static_cast<int>(sent.size());
  std::vector<std::int64_t> all(static_cast<std::size_t>(N * N));
  check_mpi(MPI_Allgather(sent.data(), N, MPI_INT64_T, all.data(), N, MPI_INT64_T, MPI_COMM_WORLD),
            "gathering the bytes sent between ranks");
  auto& rows = report.json()["receivers"][axis];
  for (auto row = all.begin(); row != all.end(); row += N) rows.push_back(std::vector<std::int64_t>(row, row + N));

  std::vector<int> receivers;
  for (int r = 0; r < N; ++r)
    if (sent[static_cast<std::size_t>(r)] > 0) receivers.push_back(r);
  const bool on_axis = std::ranges::includes(peers, receivers);
  report.check(fmt::format("who rank 0 sends to along {}", axis), fmt::format("among {}", fmt::join(peers, " ")),
               fmt::format("{}", fmt::join(receivers, " ")), on_all_ranks(on_axis));
}

}  // namespace rankwise
