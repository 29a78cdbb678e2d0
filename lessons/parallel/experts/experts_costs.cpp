#include "lessons/parallel/experts/experts_costs.hpp"

#include <algorithm>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/experts/expert_gradients.hpp"

namespace rankwise {

ParameterTable table_of(const ExpertParallelOptions& options, RankOf rank)
{
  return ParameterTable(options.config(), {}, {0, -1}, 0, options.experts_of(rank));
}

GradientLayout dense_gradients(const ParameterTable& table, DType type)
{
  const Range dense{0, table.experts().first};
  return {.elements = dense.count,
          .type = type,
          .tied = table.entries().front().elements,
          .frozen = frozen_ranges(table, dense)};
}

GradientLayout expert_gradients(const ParameterTable& table, DType type)
{
  return {
      .elements = table.experts().count, .type = type, .tied = {}, .frozen = frozen_ranges(table, table.experts())};
}

std::vector<CollectiveShape> exchanges_of(const ModelConfig& config, const ActivationShape& shape,
                                          Algorithm algorithm, const std::vector<std::int64_t>& sent,
                                          const std::vector<std::int64_t>& received, bool training)
{
  const auto rows = [&](const std::vector<std::int64_t>& to) {
    CollectiveShape call{"all-to-all-v", algorithm, shape.type, 0, 0, to};
    for (std::int64_t& count : call.counts) count *= config.channels;
    return call;
  };
  const Part run{0, static_cast<int>(shape.token_runs)};
  const std::int64_t counts = config.experts.count * shape.B * token_leaves_of(run);
  std::vector<CollectiveShape> calls{{"all-to-all", algorithm, DType::i64, counts}, rows(sent), rows(received)};
  // The gradient of a row's output travels as the row did, that of its input as the output did.
  if (training) calls.insert(calls.end(), {rows(sent), rows(received)});
  return calls;
}

namespace {

/// The collectives of a step along each axis: world, replicas.
std::vector<std::vector<CollectiveShape>> sums_of(const ExpertParallelOptions& options, const ParameterTable& table)
{
  std::vector<CollectiveShape> replicas;
  if (!table.experts().empty())
    replicas.push_back({"all-reduce", options.algorithm(), options.gradients, table.experts().count});
  return {gradient_sums(options, dense_gradients(table, options.gradients), 0), replicas};
}

std::int64_t message_bytes(const ExpertParallelOptions& options, const ParameterTable& table,
                           const ActivationShape& shape, RankOf rank)
{
  const std::vector<Axis> axes = options.axes(rank.ranks);
  const std::vector<int> at = coordinates_of(axes, rank.rank);
  const auto sums = sums_of(options, table);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(axes[1].size), 0);
  std::vector<CollectiveShape> exchanges;
  std::int64_t of_norm = 0;  // the norm's squares, which are in host memory
  if (!table.experts().empty()) {
    exchanges = exchanges_of(options.config(), shape, options.algorithm(), none, none);
    exchanges.push_back({"all-reduce", options.algorithm(), DType::i64, square_numbers});
    of_norm = host_values_bytes(options.device, axes[1].size);
  }
  return rankwise::message_bytes(options, sums[0], rank) +
         scratch_bytes(sums[1], topology_along(options, rank, "replicas"), at[0]) +
         scratch_bytes(exchanges, topology_along(options, rank, "experts"), at[1]) + of_norm;
}

/// Traffic of a step along `experts` if every expert is chosen equally often, and the most that any routing sends.
struct RoutedTraffic {
  Traffic uniform;           // rank 0's
  std::int64_t at_most = 0;  // bytes of a rank
};

/// The traffic along `experts` of one of N ranks, from the sizes alone.
RoutedTraffic routed_traffic(const ExpertParallelOptions& options, int N)
{
  const ModelConfig config = options.config();
  const Division division = divide(options, {0, N});
  const ActivationShape& shape = division.shape;
  const std::int64_t e = shape.expert_ranks, R = shape.rows(), C = config.channels;
  const std::int64_t exchanges = division.micro_batches() * config.expert_blocks();
  const std::int64_t to_each =
      config.experts.count / e *
      std::min(config.experts.per_token * R / config.experts.count, shape.B * config.experts.capacity(shape.T));
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(e), to_each);
  const Topology group = topology_along(options, {0, N}, "experts");
  const std::vector<CollectiveShape> calls = exchanges_of(config, shape, options.algorithm(), rows, rows);
  const std::int64_t counts = expected_traffic(calls.front(), group, 0).bytes;
  RoutedTraffic traffic{.uniform = exchanges * expected_traffic(calls, group, 0)};
  const std::int64_t away = e > 1 ? shape.most_sent(config) : 0, back = shape.most_received(config) / e * (e - 1);
  traffic.at_most = exchanges * (counts + 2 * (away + back) * C * bytes_of(shape.type));
  return traffic;
}

}  // namespace

Costs costs(const ExpertParallelOptions& options, RankOf rank)
{
  const ModelConfig config = options.config();
  const ParameterTable table = table_of(options, rank);
  const Division division = divide(options, rank);
  const ActivationShape& shape = division.shape;
  const std::int64_t M = division.micro_batches();
  const Arithmetic arithmetic(options.arithmetic);

  CategoryBytes bytes = arithmetic.gradient_bytes(dense_gradients(table, options.gradients), M);
  bytes += ExpertGradients::bytes(arithmetic, expert_gradients(table, options.gradients), M, shape.expert_ranks);
  bytes[Category::parameters] = bytes_of(options.precision) * table.elements();
  bytes[Category::optimizer] = adamw_bytes(table.elements(), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  bytes[Category::communication] = message_bytes(options, table, shape, rank);

  const auto sums = sums_of(options, table);
  const int replica = coordinates_of(options.axes(rank.ranks), rank.rank)[0];
  return costs_on_device(
      bytes, {{"world", "a step, to all ranks", expected_traffic(sums[0], options.topology(rank.ranks), rank.rank),
               "2 (N-1)/N of the dense gradients"},
              {"replicas", "a step, to replicas of the experts",
               expected_traffic(sums[1], topology_along(options, rank, "replicas"), replica),
               "2 (N/e-1)/(N/e) of the gradients of E/e experts"}});
}

std::string suggest_options(const ExpertParallelOptions& options, int N, std::int64_t bytes)
{
  ExpertParallelOptions o = options;
  SmallerRun run = smaller_run(o, N, bytes);
  if (fits_with_one_sequence(run, o) || run.fits_with("--ep=0", o.ep, 0)) return run.enough();
  return run.least("with these experts", "Use more ranks, fewer experts, or a smaller model.");
}

void report_plan(Report& report, const ExpertParallelOptions& options, int N)
{
  if (options.config().expert_blocks() == 0) return;
  const RoutedTraffic traffic = routed_traffic(options, N);
  report.block(
      "rows of experts",
      {{"uniform routing", group_digits(traffic.uniform.bytes), "", "bytes that rank 0 sends in a step"},
       {"at most", group_digits(traffic.at_most), "", "bytes that a rank sends, whatever the routing is"}});
  report.json()["plan"]["experts"] = {{"uniform", traffic.uniform.bytes}, {"at_most", traffic.at_most}};
}

}  // namespace rankwise
