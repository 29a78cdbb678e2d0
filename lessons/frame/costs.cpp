#include "lessons/frame/costs.hpp"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "common/collectives/subtrees.hpp"
#include "common/cuda/devices.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/arithmetic.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {

Costs costs_on_device(const CategoryBytes& kept, std::vector<SentPerStep> sent)
{
  Costs costs{.sent = std::move(sent)};
  in_tier(Tier::device, costs.kept) = in_tier(Tier::device, costs.most) = kept;
  return costs;
}

CategoryBytes unsharded_bytes(const LessonOptions& options, const Division& division)
{
  const ActivationShape& shape = division.shape;
  const ModelConfig config = options.config();
  const ParameterTable table(config, shape.part);
  CategoryBytes bytes = Arithmetic(options.arithmetic)
                            .gradient_bytes(gradient_layout(table, options.gradients),
                                            {division.sequences.first / shape.B, division.micro_batches()});
  bytes[Category::parameters] = bytes_of(options.precision) * table.elements();
  bytes[Category::optimizer] = adamw_bytes(table.elements(), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  return bytes;
}

std::vector<CollectiveShape> gradient_sums(const LessonOptions& options, const GradientLayout& gradients,
                                           std::int64_t leaves)
{
  std::vector<CollectiveShape> calls{{"all-reduce", options.algorithm(), gradients.type, gradients.elements}};
  if (Arithmetic(options.arithmetic).separates_tied())
    calls.push_back({"all-reduce", options.algorithm(), gradients.type, gradients.tied.count});
  for (CollectiveShape& call : calls) call.leaves = leaves;
  return calls;
}

std::string describe_subtrees(const LessonOptions& options, RankOf replica)
{
  const DealtLeaves leaves(options.leaves(), replica.ranks);
  if (leaves.are_balanced()) return "";
  return fmt::format("; {} subtrees, a reduce-scatter each", leaves.runs_of(replica.rank).size());
}

std::int64_t charged_flops(const ModelConfig& config, const ActivationShape& shape, std::int64_t micro_batches)
{
  std::int64_t flops = 0;
  const std::int64_t head = unit_count(config) - 1;
  for (std::int64_t unit = 1; unit <= head; ++unit) {
    const std::int64_t passes = 3 + (shape.recompute && unit != head ? 1 : 0);
    flops += passes * std::llround(unit_flops(config, unit, shape.rows(), shape.T) / shape.part.count);
  }
  return micro_batches * flops;
}

std::int64_t message_bytes(const LessonOptions& options, std::vector<CollectiveShape> calls, RankOf rank)
{
  calls.push_back({"all-reduce", options.algorithm(), DType::i64, loss_numbers});
  return scratch_bytes(calls, options.topology(rank.ranks), rank.rank) +
         host_values_bytes(options.device, rank.ranks);
}

}  // namespace rankwise
