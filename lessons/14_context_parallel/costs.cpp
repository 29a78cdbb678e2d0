#include "lessons/14_context_parallel/costs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/cuda/devices.hpp"
#include "lessons/14_context_parallel/head_exchange.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/parallel/context/context_gradients.hpp"
#include "lessons/parallel/context/ring_attention.hpp"

namespace rankwise {

namespace {

/// What the costs of a rank follow from.
struct Plan {
  const ContextParallelOptions& options;
  RankOf rank;
  ModelConfig config = options.config();
  Division division = divide(options, rank);
  TokenRuns runs = options.runs(rank.ranks);
  Arithmetic arithmetic = Arithmetic(options.arithmetic);
  GradientLayout gradients = gradient_layout(ParameterTable(config), options.gradients);
  std::vector<int> place = coordinates_of(options.axes(rank.ranks), rank.rank);  // dp, cp

  Topology along(const std::string& axis) const { return topology_along(options, rank, axis); }
  bool ring() const { return options.attention == AttentionBy::ring; }
  bool tree() const { return arithmetic.continues_tree(); }
  std::vector<CollectiveShape> sums() const { return gradient_sums(options, gradients, 0); }
  RingSizes sizes() const { return {config, division.shape, runs, arithmetic, options.algorithm()}; }
};

/// Collectives along cp in the attention of one layer: forward, backward.
std::vector<CollectiveShape> exchanges(const Plan& plan, bool backward)
{
  const auto heads = [&](std::int64_t sections) {
    return HeadExchange::exchange(plan.config, plan.division.shape, plan.options.algorithm(), sections);
  };
  if (!plan.ring()) return {heads(3), heads(1)};
  return backward ? plan.sizes().exchanges() : std::vector<CollectiveShape>{};
}

/// Traffic of a rank along cp in a step: in each layer that of a forward and of a backward pass.
Traffic along_context(const Plan& plan)
{
  const auto all = [&](const std::vector<CollectiveShape>& calls) {
    return expected_traffic(calls, plan.along("cp"), plan.place[1]);
  };
  // A ring passes blocks on; an all-to-all, and gradients that return to their keys, are collectives.
  Traffic pass, back;
  if (plan.ring()) pass = plan.sizes().passes(false), back = plan.sizes().passes(true);
  pass += all(exchanges(plan, false));
  back += all(exchanges(plan, true));
  // With recomputation the forward pass is made twice.
  Traffic sent = plan.config.layers * (plan.division.shape.recompute ? 2 : 1) * pass;
  sent += plan.config.layers * back;
  // In the order of the tree the gradients of a sequence too: those of each run, or of both.
  if (plan.tree()) sent += (plan.options.order == TokenOrder::zigzag ? runs_of_a_rank : 1) * all(plan.sums());
  return plan.division.micro_batches() * sent;
}

/// Bytes of a rank for messages: scratch of the collectives along each group, and blocks, or heads, on their way.
std::int64_t communication_bytes(const Plan& plan)
{
  // Exact arithmetic sums gradients along cp, then along dp; fast arithmetic once, over all ranks.
  std::vector<CollectiveShape> of_context = exchanges(plan, true);
  if (plan.tree()) {
    const std::vector<CollectiveShape> gradients = plan.sums();
    of_context.insert(of_context.end(), gradients.begin(), gradients.end());
  }
  std::int64_t bytes =
      message_bytes(plan.options, plan.tree() ? std::vector<CollectiveShape>{} : plan.sums(), plan.rank) +
      scratch_bytes(of_context, plan.along("cp"), plan.place[1]);
  if (plan.tree()) bytes += scratch_bytes(plan.sums(), plan.along("dp"), plan.place[0]);
  if (plan.ring()) return bytes + plan.sizes().message_bytes();
  return bytes + 2 * bytes_of(plan.division.shape.type) * exchanges(plan, false).front().count;
}

/// Scratch of attention, beyond that of a layer.
std::int64_t attention_workspace(const Plan& plan)
{
  if (plan.ring()) return plan.sizes().workspace_bytes();
  return HeadExchange::workspace_bytes(plan.config, plan.division.shape, plan.runs);
}

}  // namespace

Costs costs(const ContextParallelOptions& options, RankOf rank)
{
  const Plan plan{options, rank};
  // Model state as in lesson 03, the whole of it: 16 P bytes in f32.
  CategoryBytes bytes = unsharded_bytes(options, plan.division);
  bytes[further_sums] += ContextGradients::bytes(plan.gradients, plan.arithmetic);
  // Activations and scratch of both runs of tokens, B T / c rows together, and what attention keeps beyond them.
  bytes[Category::activations] = runs_of_a_rank * activation_bytes(plan.config, plan.division.shape);
  if (!plan.ring())
    bytes[Category::activations] += HeadExchange::kept_bytes(plan.config, plan.division.shape, plan.runs);
  bytes[Category::workspace] = runs_of_a_rank * workspace_bytes(plan.config, plan.division.shape) +
                               attention_workspace(plan) + kernel_bytes(options.device);
  bytes[Category::communication] = communication_bytes(plan);

  // What is sent along a sequence, then the all-reduce of the gradients.
  Costs costs = costs_on_device(bytes, {{"cp", "a step, along a sequence", along_context(plan),
                                         plan.ring() ? "blocks of keys and values, and their gradients"
                                                     : "q, k, v, outputs, and their gradients"}});
  if (plan.tree())
    costs.sent.push_back({"dp", "a step, to replicas",
                          expected_traffic(plan.sums(), plan.along("dp"), plan.place[0]),
                          "2 (dp-1)/dp of the gradients"});
  else
    costs.sent.push_back({"world", "a step, to all ranks",
                          expected_traffic(plan.sums(), options.topology(rank.ranks), rank.rank),
                          "2 (N-1)/N of the gradients"});
  return costs;
}

double pairs_of(const ContextParallelOptions& options, RankOf rank)
{
  // All-to-all: all queries and all keys, in 1 / c of the heads. Ring: the queries of this rank's runs and all keys, in
  // all heads.
  const TokenRuns runs = options.runs(rank.ranks);
  const Range all{0, runs.T};
  const Mask mask = options.config().mask;
  if (options.attention == AttentionBy::all_to_all)
    return static_cast<double>(visible_pairs(mask, runs.T, all, all)) / runs.ranks;
  std::int64_t pairs = 0;
  for (const std::int64_t run : runs.of(rank.rank % runs.ranks))
    pairs += visible_pairs(mask, runs.T, runs.tokens(run), all);
  return static_cast<double>(pairs);
}

std::int64_t charged_flops(const ContextParallelOptions& options, RankOf rank)
{
  const ModelConfig config = options.config();
  const Division division = divide(options, rank);
  const ActivationShape& shape = division.shape;
  const std::int64_t passes = shape.recompute ? 4 : 3;
  // Both runs of a rank, without pairs of tokens; then these.
  std::int64_t flops = 0;
  for (std::int64_t unit = 1; unit < unit_count(config); ++unit) {
    const bool head = unit + 1 == unit_count(config);
    flops += (head ? 3 : passes) * runs_of_a_rank * std::llround(unit_flops(config, unit, shape.rows(), 0));
  }
  const auto pairs = std::llround(pairs_of(options, rank) * static_cast<double>(config.channels));
  flops += config.layers * passes * attention_flops(shape.B * pairs, 1);
  return division.micro_batches() * flops;
}

std::string suggest_options(const ContextParallelOptions& options, int N, std::int64_t bytes)
{
  ContextParallelOptions smaller = options;
  SmallerRun run = smaller_run(smaller, N, bytes);
  if (fits_with_one_sequence(run, smaller) || run.fits_with("--recompute=block", smaller.recompute_blocks, true))
    return run.enough();
  return run.least(fmt::format("with {} ranks for each sequence", options.context_ranks(N)),
                   "Divide sequences among more ranks (--cp), or use shorter ones.");
}

void report_plan(Report& report, const ContextParallelOptions& options, int N)
{
  const TokenRuns runs = options.runs(N);
  std::vector<double> pairs;
  for (int rank = 0; rank < runs.ranks; ++rank) pairs.push_back(pairs_of(options, {rank, N}));
  const double all = std::accumulate(pairs.begin(), pairs.end(), 0.0);
  std::vector<Line> lines;
  for (int rank = 0; rank < runs.ranks; ++rank) {
    const auto tokens = [&](std::size_t k) {
      const Range of_run = runs.tokens(runs.of(rank)[k]);
      return fmt::format("{}-{}", of_run.first, of_run.end() - 1);
    };
    const double own = pairs[static_cast<std::size_t>(rank)];
    lines.push_back({fmt::format("rank {}", rank), group_digits(std::llround(own)), "",
                     fmt::format("pairs of a query and a key; tokens {} and {}", tokens(0), tokens(1))});
  }
  const double most = std::ranges::max(pairs);
  lines.push_back({"largest / mean", fmt::format("{:.3f}", most * runs.ranks / all), "", "work of attention"});
  report.block("attention of a sequence", lines);
  report.json()["pairs"] = pairs;
}

}  // namespace rankwise
