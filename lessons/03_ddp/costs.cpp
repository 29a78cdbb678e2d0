#include "lessons/03_ddp/costs.hpp"

#include "common/collectives/cost.hpp"
#include "common/cuda/devices.hpp"
#include "gpt2/gradient_sum.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/03_ddp/stages.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {

namespace {

/// The all-reduces of one step's gradients.
std::vector<CollectiveShape> gradient_sums(const DdpOptions& options)
{
  std::vector<CollectiveShape> sums;
  const auto add = [&](std::int64_t n) {
    sums.push_back({"all-reduce", options.algorithm(), options.gradients, n});
  };
  for (const Range& piece : pieces_of(options)) add(piece.count);
  if (Arithmetic(options.arithmetic).keeps_tied_apart())
    add(gradient_layout(ParameterTable(options.config()), options.gradients).tied.count);
  return sums;
}

/// Scratch for all collectives of a run: sums of gradients and of losses, the broadcast of the initial model, the comparison
/// of replicas.
std::int64_t scratch_of_run(const DdpOptions& options, RankOf rank)
{
  std::vector<CollectiveShape> calls = gradient_sums(options);
  calls.push_back({"broadcast", options.algorithm(), DType::f32, ParameterTable(options.config()).elements()});
  calls.push_back({"all-reduce", options.algorithm(), DType::i64, loss_numbers});
  calls.push_back({"all-gather", options.algorithm(), DType::i64, rank.ranks});
  return scratch_bytes(calls, options.topology(rank.ranks), rank.rank);
}

}  // namespace

std::vector<Range> pieces_of(const DdpOptions& options)
{
  const ParameterTable table(options.config());
  std::vector<Range> pieces;
  if (options.strategy == Strategy::per_tensor)
    for (const Parameter& p : table.entries()) pieces.push_back(p.elements);
  else if (options.strategy == Strategy::flat)
    pieces.push_back({0, table.elements()});
  else
    for (const Bucket& bucket : make_buckets(table, options.gradients, options.bucket.value))
      pieces.push_back(bucket.elements);
  return pieces;
}

Costs costs(const DdpOptions& options, RankOf rank)
{
  const ModelConfig config = options.config();
  const ParameterTable table(config);
  const ActivationShape shape = options.activation_shape(rank);
  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = Arithmetic(options.arithmetic)
              .gradient_bytes(gradient_layout(table, options.gradients), options.share(rank.ranks) / shape.B);
  bytes[Category::parameters] = bytes_of(options.precision) * table.elements();
  bytes[Category::optimizer] = adamw_bytes(table.elements(), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  bytes[Category::communication] = scratch_of_run(options, rank) + host_values_bytes(options.device, rank.ranks);
  costs.most = costs.kept;

  Traffic sent;
  for (const CollectiveShape& call : gradient_sums(options))
    sent += expected_traffic(call, options.topology(rank.ranks), rank.rank);
  costs.sent = {{"world", "a step", sent, "2 (N-1)/N of the gradients"}};
  return costs;
}

std::string suggest_options(const DdpOptions& options, int N, std::int64_t bytes)
{
  const RankOf rank{0, N};
  return what_fits(Stage::ddp, options, options.messages, options.bucket.value, rank,
                   in_tier(Tier::device, costs(options, rank).most), bytes);
}

}  // namespace rankwise
