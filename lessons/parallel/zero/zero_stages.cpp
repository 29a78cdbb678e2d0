#include "lessons/parallel/zero/zero_stages.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "common/base/text.hpp"
#include "gpt2/adamw.hpp"
#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"

namespace rankwise {

namespace {

constexpr std::array<const char*, 4> names{"DDP (lesson 03)", "ZeRO-1 (lesson 04)", "ZeRO-2 (lesson 05)",
                                           "ZeRO-3 (lesson 06)"};

/// The plan of a stage: buckets; with ZeRO-3 the head, blocks and embedding.
StepPlan plan_of(Stage stage, const LessonOptions& options, std::int64_t bucket)
{
  const ParameterTable table(options.config());
  StepPlan plan = step_plan(options, table,
                            stage == Stage::zero3 ? make_fsdp_units(table, UnitKind::block)
                                                  : make_buckets(table, options.gradients, bucket));
  plan.leaves = 0;
  return plan;
}

/// Largest shard of a run of elements.
std::int64_t share_of(std::int64_t elements, int N)
{
  return Partition(elements, N).shard(0).count;
}

/// Upper bound on the gradients that a rank sums if it owns a shard of each bucket.
GradientLayout shares_of(const StepPlan& plan, int N)
{
  const GradientLayout all = gradient_layout(plan.table, plan.gradients);
  const std::int64_t tied = std::min(all.tied.count, share_of(plan.buckets.back().elements.count, N));
  GradientLayout own{.elements = 0, .type = all.type, .tied = {0, tied}};
  for (const Bucket& bucket : plan.buckets) own.elements += share_of(bucket.elements.count, N);
  return own;
}

/// Peak number of gathered parameters if one unit is gathered ahead: two blocks; or the last block, the head and
/// the embedding, which is tied to the head.
std::int64_t gathered(const StepPlan& plan)
{
  const auto elements = [&](std::size_t unit) { return plan.buckets[unit].elements.count; };
  return std::max(2 * elements(1), elements(0) + elements(1) + plan.buckets.back().elements.count);
}

/// Upper bound on a rank's bytes if this run used another ZeRO stage.
std::int64_t stage_bytes(Stage stage, const LessonOptions& options, std::int64_t bucket,
                         const CategoryBytes& planned, int N)
{
  const StepPlan plan = plan_of(stage, options, bucket);
  const std::int64_t P = plan.table.elements();
  const GradientLayout own = shares_of(plan, N);
  const CategoryBytes sums =
      Arithmetic(options.arithmetic)
          .gradient_bytes(stage >= Stage::zero2 ? own : gradient_layout(plan.table, plan.gradients),
                          divide(options, {0, N}).micro_batches());

  CategoryBytes bytes = planned;
  for (std::size_t c = 0; c < bytes.bytes.size(); ++c)
    if (sums.bytes[c] > 0) bytes.bytes[c] = sums.bytes[c];
  if (stage >= Stage::zero2) bytes[Category::gradients] += alive_bytes(plan);
  bytes[Category::parameters] =
      bytes_of(options.precision) * (stage == Stage::zero3 ? own.elements + gathered(plan) : P);
  bytes[Category::optimizer] = adamw_bytes(stage >= Stage::zero1 ? own.elements : P, options.precision);
  bytes[Category::communication] = message_bytes(options, collectives_of(plan, N), {0, N});
  return bytes.total();
}

}  // namespace

Division divide_with_padding(const LessonOptions& options, RankOf rank)
{
  Division division = divide(options, rank);
  division.sequences.count = divide(options, {0, rank.ranks}).sequences.count;
  return division;
}

std::string suggest_stage(Stage stage, const LessonOptions& options, std::int64_t bucket,
                          const CategoryBytes& planned, int N, std::int64_t capacity)
{
  const StepPlan plan = plan_of(stage, options, bucket);
  const GradientLayout sums =
      stage >= Stage::zero2 ? shares_of(plan, N) : gradient_layout(plan.table, plan.gradients);
  std::string text = suggest_options(options, options.global_batch / N, sums, planned, capacity);
  for (int later = static_cast<int>(stage) + 1; later < static_cast<int>(names.size()); ++later) {
    const std::int64_t bytes = stage_bytes(static_cast<Stage>(later), options, bucket, planned, N);
    if (bytes > capacity) continue;
    return text + fmt::format(" Or use {}, which needs {} bytes at most with these options.",
                              names[static_cast<std::size_t>(later)], group_digits(bytes));
  }
  return stage == Stage::ddp ? text
                             : text + " Or use more ranks, each of which keeps less, or offload (lesson 07).";
}

}  // namespace rankwise
