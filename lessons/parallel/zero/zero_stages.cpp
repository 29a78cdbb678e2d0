#include "lessons/parallel/zero/zero_stages.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "common/base/text.hpp"
#include "common/collectives/cost.hpp"
#include "gpt2/gradient_sum.hpp"
#include "lessons/parallel/zero/buckets.hpp"

namespace rankwise {

namespace {

constexpr std::array<const char*, 4> names{"DDP (lesson 03)", "ZeRO-1 (lesson 04)", "ZeRO-2 (lesson 05)",
                                           "ZeRO-3 (lesson 06)"};

/// Elements of each message of a stage, the last unit first: buckets; with ZeRO-3 the head, blocks and embedding.
std::vector<std::int64_t> runs_of(Stage stage, const ParameterTable& table, DType type, std::int64_t bucket)
{
  std::vector<std::int64_t> elements;
  const auto of_unit = [&](std::int64_t unit) { return table.unit_elements(static_cast<int>(unit)).count; };
  const std::int64_t head = table.units().end() - 1;
  if (stage == Stage::zero3) {
    elements.push_back(of_unit(head));
    for (std::int64_t unit = head - 1; unit > 0; unit -= 2) elements.push_back(of_unit(unit) + of_unit(unit - 1));
    elements.push_back(of_unit(0));
  } else {
    for (const Bucket& b : make_buckets(table, type, bucket)) elements.push_back(b.elements.count);
  }
  return elements;
}

/// Largest shard of a run of elements.
std::int64_t share_of(std::int64_t elements, int N)
{
  return Partition(elements, N).shard(0).count;
}

/// Upper bound on the gradients that a rank sums if it owns a shard of each run.
GradientLayout shares_of(const GradientLayout& all, const std::vector<std::int64_t>& runs, int N)
{
  GradientLayout own{
      .elements = 0, .type = all.type, .tied = {0, std::min(all.tied.count, share_of(runs.back(), N))}};
  for (const std::int64_t n : runs) own.elements += share_of(n, N);
  return own;
}

/// Peak number of gradient elements in flight: two neighbouring runs, and the embedding's.
std::int64_t alive(const std::vector<std::int64_t>& runs)
{
  std::int64_t two = 0;
  for (std::size_t i = 0; i + 1 < runs.size(); ++i)
    two = std::max(two, runs[i] + (i + 2 < runs.size() ? runs[i + 1] : 0));
  return two + runs.back();
}

/// Peak number of gathered parameters if one unit is gathered ahead: two blocks; or the last block, the head and
/// the embedding, which is tied to the head.
std::int64_t gathered(const std::vector<std::int64_t>& runs)
{
  return std::max(2 * runs[1], runs[0] + runs[1] + runs.back());
}

/// Bytes of rank 0's buffers for all messages of a step.
std::int64_t buffers(const std::vector<std::int64_t>& runs, std::int64_t tied, const LessonOptions& options, int N)
{
  std::vector<CollectiveShape> calls;
  if (tied > 0) calls.push_back({"all-reduce", options.algorithm(), options.gradients, tied});
  for (const std::int64_t n : runs) {
    calls.push_back({"reduce-scatter", options.algorithm(), options.gradients, n});
    calls.push_back({"all-gather", options.algorithm(), options.precision, n});
  }
  return message_bytes(options, calls, {0, N});
}

/// Upper bound on a rank's bytes if this run used another ZeRO stage.
std::int64_t stage_bytes(Stage stage, const LessonOptions& options, std::int64_t bucket,
                         const CategoryBytes& planned, int N)
{
  const ParameterTable table(options.config());
  const Arithmetic arithmetic(options.arithmetic);
  const std::int64_t P = table.elements();
  const std::vector<std::int64_t> runs = runs_of(stage, table, options.gradients, bucket);
  const GradientLayout all = gradient_layout(table, options.gradients), own = shares_of(all, runs, N);
  const std::int64_t tied = arithmetic.separates_tied() ? all.tied.count : 0;
  const CategoryBytes sums =
      arithmetic.gradient_bytes(stage >= Stage::zero2 ? own : all, divide(options, {0, N}).micro_batches());

  CategoryBytes bytes = planned;
  for (std::size_t c = 0; c < bytes.bytes.size(); ++c)
    if (sums.bytes[c] > 0) bytes.bytes[c] = sums.bytes[c];
  if (stage >= Stage::zero2) bytes[Category::gradients] += bytes_of(options.gradients) * (alive(runs) + tied);
  bytes[Category::parameters] =
      bytes_of(options.precision) * (stage == Stage::zero3 ? own.elements + gathered(runs) : P);
  bytes[Category::optimizer] = adamw_bytes(stage >= Stage::zero1 ? own.elements : P, options.precision);
  bytes[Category::communication] = buffers(runs, tied, options, N);
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
  const ParameterTable table(options.config());
  GradientLayout sums = gradient_layout(table, options.gradients);
  if (stage >= Stage::zero2) sums = shares_of(sums, runs_of(stage, table, options.gradients, bucket), N);
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
