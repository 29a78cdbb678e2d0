#include "lessons/parallel/mesh/mesh_traffic.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/messages/job_report.hpp"

namespace rankwise {

void check_receivers(Report& report, const std::string& axis, const std::vector<std::int64_t>& sent,
                     const std::vector<int>& peers)
{
  std::vector<int> receivers;
  for (int r = 0; r < static_cast<int>(sent.size()); ++r)
    if (sent[static_cast<std::size_t>(r)] > 0) receivers.push_back(r);
  const bool on_axis = std::ranges::includes(peers, receivers);
  report.check(fmt::format("who rank 0 sends to along {}", axis), fmt::format("among {}", fmt::join(peers, " ")),
               fmt::format("{}", fmt::join(receivers, " ")), on_all_ranks(on_axis));
}

}  // namespace rankwise
