#include "lessons/parallel/pipeline/stages.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"

namespace rankwise {

namespace {

/// The units of a stage with these blocks: two for each, and the embedding with the first, the head with the last.
Range units_of(const ModelConfig& config, Range blocks)
{
  const std::int64_t first = blocks.first == 0 ? 0 : 1 + 2 * blocks.first;
  const std::int64_t end = 1 + 2 * blocks.end() + (blocks.end() == config.layers ? 1 : 0);
  return {first, end - first};
}

/// The floating-point operations of one token's forward pass through a stage with these blocks.
std::int64_t stage_work(const ModelConfig& config, Range blocks, std::int64_t sequence)
{
  std::int64_t work = 0;
  const Range units = units_of(config, blocks);
  for (std::int64_t unit = units.first; unit < units.end(); ++unit)
    work += std::llround(unit_flops(config, unit, 1, sequence));
  return work;
}

}  // namespace

std::vector<Range> make_stages(const ModelConfig& config, int stages, std::int64_t sequence)
{
  const std::int64_t L = config.layers;
  check(1 <= stages && stages <= L, fmt::format("{} blocks cannot be cut into {} stages", L, stages));
  std::vector<std::int64_t> blocks;  // of each stage
  // BEGIN EXERCISE 09.3
  struct Cut {
    std::vector<std::int64_t> blocks, work;  // of each stage; the work sorted, the largest first
  };
  std::vector<Cut> best(static_cast<std::size_t>(L) + 1);  // of the blocks after each, into the stages after it
  for (int stage = stages - 1; stage >= 0; --stage) {
    const int behind = stages - 1 - stage;
    for (std::int64_t first = stage; first < L - behind; ++first) {
      Cut found;
      const std::int64_t most = L - behind - first, least = behind == 0 ? most : 1;
      for (std::int64_t count = most; count >= least; --count) {
        Cut cut = best[static_cast<std::size_t>(first + count)];
        cut.blocks.insert(cut.blocks.begin(), count);
        const std::int64_t work = stage_work(config, {first, count}, sequence);
        cut.work.insert(std::upper_bound(cut.work.begin(), cut.work.end(), work, std::greater<>()), work);
        if (found.work.empty() || cut.work < found.work) found = cut;
      }
      best[static_cast<std::size_t>(first)] = found;
    }
  }
  blocks = best[0].blocks;
  // END EXERCISE
  return make_stages(config, blocks);
}

std::vector<Range> make_stages(const ModelConfig& config, const std::vector<std::int64_t>& blocks)
{
  check(std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}) == config.layers,
        "the stages do not have all blocks of the model");
  std::vector<Range> stages;
  std::int64_t first = 0;
  for (const std::int64_t count : blocks) {
    check(count >= 1, "a stage without blocks");
    stages.push_back(units_of(config, {first, count}));
    first += count;
  }
  return stages;
}

std::vector<std::int64_t> parse_partition(const std::string& text, const ModelConfig& config, int stages)
{
  const std::int64_t L = config.layers;
  check(1 <= stages && stages <= L, fmt::format("{} blocks cannot be cut into {} stages", L, stages));
  std::vector<std::int64_t> even, blocks;
  for (int stage = 0; stage < stages; ++stage) even.push_back(Partition(L, stages).shard(stage).count);
  const std::string remedy = fmt::format(
      "Give the blocks of each of the {} stages, at least 1 each and {} together, with commas between them: use "
      "for example --partition={}.",
      stages, L, fmt::join(even, ","));
  for (std::string_view rest = text;;) {
    const std::string_view word = rest.substr(0, rest.find(','));
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
    if (error != std::errc{} || end != word.data() + word.size() || count < 1 || count > L)
      throw UserError(fmt::format("--partition={}: '{}' is not a number of blocks from 1 to {}.", text, word, L),
                      remedy);
    blocks.push_back(count);
    if (word.size() == rest.size()) break;
    rest.remove_prefix(word.size() + 1);
  }
  const std::int64_t sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  if (std::ssize(blocks) != stages || sum != L)
    throw UserError(
        fmt::format("--partition={}: {} stages with {} blocks; the model has {} blocks, and {} stages are "
                    "asked for.",
                    text, blocks.size(), sum, L, stages),
        remedy);
  return blocks;
}

std::vector<ActionCosts> stage_costs(const ModelConfig& config, const std::vector<Range>& stages, std::int64_t rows,
                                     std::int64_t sequence, bool recompute)
{
  std::vector<ActionCosts> costs;
  for (const Range& units : stages) {
    ActionCosts& cost = costs.emplace_back(ActionCosts{0, 0, 0, 0});
    for (std::int64_t unit = units.first; unit < units.end(); ++unit) {
      const std::int64_t forward = std::llround(unit_flops(config, unit, rows, sequence));
      const std::int64_t weights =
          std::llround(unit_flops(config, unit, rows, 0));  // attention's products have no weights
      cost.forward += forward;
      cost.backward_input += 2 * forward - weights;
      cost.backward_weights += weights;
      if (recompute && unit != 0 && unit != 2 * config.layers + 1) cost.again += forward;
    }
  }
  return costs;
}

}  // namespace rankwise
