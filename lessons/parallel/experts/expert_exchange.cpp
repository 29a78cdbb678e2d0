#include "lessons/parallel/experts/expert_exchange.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/collectives/collectives.hpp"
#include "common/messages/job_report.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"
#include "lessons/parallel/experts/experts_costs.hpp"

namespace rankwise {

ExpertExchange::ExpertExchange(Group& group, Stream& stream, const ModelContext& context,
                               const ActivationShape& shape)
    : group_(group),
      stream_(stream),
      config_(context.config),
      shape_(shape),
      layer_(context, group.ranks()),
      loads_(static_cast<std::size_t>(config_.layers))
{
}

void ExpertExchange::begin_step()
{
  counted_ = {};
  for (auto& load : loads_) load.clear();
}

namespace {

/// In a rehearsal no counts arrive. All ranks choose alike, so each would send what this rank sends itself.
void repeat_own(std::vector<std::int64_t>& by_rank, const Group& group)
{
  const std::size_t of_rank = by_rank.size() / static_cast<std::size_t>(group.ranks());
  const auto own = by_rank.begin() + static_cast<std::ptrdiff_t>(of_rank) * group.rank();
  const std::vector<std::int64_t> block(own, own + static_cast<std::ptrdiff_t>(of_rank));
  for (std::size_t i = 0; i < by_rank.size(); ++i) by_rank[i] = block[i % of_rank];
}

}  // namespace

RoutedRows ExpertExchange::count(const RoutingPlan& plan, const RoutedActivations& a, std::int64_t block,
                                 const MicroBatch& batch)
{
  const Range counts{0, std::ssize(plan.leaves)};  // a run of tokens has fewer leaves than whole sequences
  const Tensor arriving = a.leaf_ends.slice(counts);
  all_to_all(a.sent_leaves.slice(counts), arriving, group_);
  std::vector<std::int64_t> leaf_ends = to_host<std::int64_t>(stream_, arriving);
  if (Rehearsal::current()) repeat_own(leaf_ends, group_);
  RoutedRows rows{{}, {}, layer_.count(leaf_ends, a, batch)};
  const std::int64_t here = rows.here.experts;
  for (std::int64_t rank = 0; rank < group_.ranks(); ++rank) {
    const auto first = plan.rows.begin() + rank * here;
    rows.sent.push_back(std::accumulate(first, first + here, std::int64_t{0}));
    rows.received.push_back(rows.here.from(rank));
  }
  if (!batch.training) return rows;
  auto& load = loads_[static_cast<std::size_t>(block)];
  load.resize(plan.rows.size(), 0);
  std::transform(load.begin(), load.end(), plan.rows.begin(), load.begin(), std::plus<>());
  counted_ += expected_traffic(exchanges_of(config_, shape_, group_.algorithm(), rows.sent, rows.received),
                               group_.topology(), group_.rank());
  return rows;
}

namespace {

/// Sends rows of C elements.
void exchange(const Tensor& to, const std::vector<std::int64_t>& received, const Tensor& from,
              const std::vector<std::int64_t>& sent, std::int64_t C, Group& group)
{
  const auto elements = [&](std::vector<std::int64_t> rows) {
    for (std::int64_t& n : rows) n *= C;
    return rows;
  };
  const auto all = [](const std::vector<std::int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  const auto out = elements(sent), in = elements(received);
  all_to_all_v(from.slice({0, all(out)}), out, to.slice({0, all(in)}), in, group);
}

}  // namespace

void ExpertExchange::to_experts(const Tensor& received, const Tensor& sent, const RoutedRows& rows)
{
  exchange(received, rows.received, sent, rows.sent, config_.channels, group_);
}

void ExpertExchange::back(const Tensor& returned, const Tensor& output, const RoutedRows& rows)
{
  exchange(returned, rows.sent, output, rows.received, config_.channels, group_);
}

void ExpertExchange::report(Report& report, const Traffic& measured, std::int64_t copies)
{
  std::vector<Line> lines;
  nlohmann::json json = nlohmann::json::array();
  for (std::size_t block = 0; block < loads_.size(); ++block) {
    if (!config_.has_experts(static_cast<std::int64_t>(block))) continue;
    std::vector<std::int64_t> load = loads_[block];
    load.resize(static_cast<std::size_t>(config_.experts.count), 0);
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, load.data(), static_cast<int>(load.size()), MPI_INT64_T, MPI_SUM,
                            MPI_COMM_WORLD),
              "summing the loads of experts");
    for (std::int64_t& rows : load) rows /= copies;
    const auto all = static_cast<double>(std::accumulate(load.begin(), load.end(), std::int64_t{0}));
    const double mean = all / static_cast<double>(load.size());
    const double imbalance = all > 0 ? static_cast<double>(*std::max_element(load.begin(), load.end())) / mean : 0;
    lines.push_back({fmt::format("block {}", block), fmt::format("{}", fmt::join(load, " ")), "",
                     fmt::format("rows of each expert in the last step; largest / mean {:.3f}", imbalance)});
    json.push_back({{"block", block}, {"rows", load}, {"imbalance", imbalance}});
  }
  if (lines.empty()) return;
  report.block("experts", lines);
  report.json()["experts"] = json;
  report.json()["traffic"]["experts"] = {{"bytes", measured.bytes},
                                         {"formula", counted_.bytes},
                                         {"messages", measured.messages},
                                         {"formula_messages", counted_.messages}};
  report.check("bytes of rows that rank 0 sent", group_digits(counted_.bytes), group_digits(measured.bytes),
               on_all_ranks(measured == counted_));
}

}  // namespace rankwise
