// How lesson 09 cuts a model into stages, and the cost of each.

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/parallel/pipeline/stages.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// A model of @p blocks small blocks.
ModelConfig model_of(std::int64_t layers, std::int64_t vocabulary)
{
  ModelConfig config = preset("nano");
  config.layers = layers;
  config.vocabulary = vocabulary;
  return config;
}

/// The number of blocks of each stage; requires stages of whole, adjacent blocks.
std::vector<std::int64_t> blocks_of(const ModelConfig& config, const std::vector<Range>& stages)
{
  std::vector<std::int64_t> blocks;
  std::int64_t next = 0;
  for (const Range& units : stages) {
    CHECK(units.first == next);
    next = units.end();
    const std::int64_t ends = (units.contains(0) ? 1 : 0) + (units.contains(2 * config.layers + 1) ? 1 : 0);
    CHECK((units.count - ends) % 2 == 0);
    blocks.push_back((units.count - ends) / 2);
  }
  CHECK(next == 2 * config.layers + 2);
  return blocks;
}

/// Operations of a token in each stage of a cut, the largest first.
std::vector<double> sorted_work(const ModelConfig& config, const std::vector<std::int64_t>& blocks,
                                std::int64_t sequence)
{
  std::vector<double> work;
  std::int64_t unit = 0;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const std::int64_t ends = (stage == 0 ? 1 : 0) + (stage + 1 == blocks.size() ? 1 : 0);
    work.push_back(0);
    for (const std::int64_t end = unit + 2 * blocks[stage] + ends; unit < end; ++unit)
      work.back() += unit_flops(config, unit, 1, sequence);
  }
  std::sort(work.begin(), work.end(), std::greater<>());
  return work;
}

/// Calls f with each partition of @p blocks blocks into stages; those with more blocks in early stages come first.
void for_each_cut(std::int64_t left, int stages, std::vector<std::int64_t> front,
                  const std::function<void(const std::vector<std::int64_t>&)>& f)
{
  if (stages == 1) {
    front.push_back(left);
    return f(front);
  }
  for (std::int64_t count = left - (stages - 1); count >= 1; --count) {
    std::vector<std::int64_t> longer = front;
    longer.push_back(count);
    for_each_cut(left - count, stages - 1, longer, f);
  }
}

/// The blocks of each stage as make_stages() finds them.
std::vector<std::int64_t> balanced(const ModelConfig& config, int stages, std::int64_t sequence)
{
  return blocks_of(config, make_stages(config, stages, sequence));
}

/// The message of parse_partition() for a text and nano's 4 blocks; empty if it accepts it.
std::string refusal(const std::string& text, int stages)
{
  try {
    parse_partition(text, preset("nano"), stages);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("make_stages: the cuts of known models")
{
  using Blocks = std::vector<std::int64_t>;
  CHECK(balanced(preset("nano"), 1, 64) == Blocks{4});
  CHECK(balanced(preset("nano"), 2, 64) == Blocks{2, 2});
  CHECK(balanced(preset("nano"), 3, 64) == Blocks{2, 1, 1});
  CHECK(balanced(preset("nano"), 4, 64) == Blocks{1, 1, 1, 1});
  // The head of gpt2 takes as much as four and a half of its blocks.
  CHECK(balanced(preset("gpt2"), 2, 1024) == Blocks{8, 4});
  CHECK(balanced(preset("gpt2"), 4, 1024) == Blocks{4, 4, 3, 1});
  CHECK(balanced(preset("gpt2"), 12, 1024) == Blocks(12, 1));
  CHECK(make_stages(preset("nano"), 2, 64) == std::vector<Range>{{0, 5}, {5, 5}});
  CHECK(make_stages(preset("nano"), 1, 64) == std::vector<Range>{{0, 10}});
}

TEST_CASE("make_stages: no other cut of a small model is better")
{
  for (const std::int64_t vocabulary : {8, 256, 900, 4000})
    for (std::int64_t layers = 1; layers <= 9; ++layers)
      for (int stages = 1; stages <= layers; ++stages) {
        INFO(layers << " blocks, " << stages << " stages, " << vocabulary << " tokens in the vocabulary");
        const ModelConfig config = model_of(layers, vocabulary);
        std::vector<std::int64_t> best;
        for_each_cut(layers, stages, {}, [&](const std::vector<std::int64_t>& cut) {
          if (best.empty() || sorted_work(config, cut, 16) < sorted_work(config, best, 16)) best = cut;
        });
        CHECK(balanced(config, stages, 16) == best);
      }
}

TEST_CASE("make_stages: long sequences make blocks heavier, and the last stage has more of them")
{
  const ModelConfig config = preset("gpt2");
  CHECK(balanced(config, 2, 16)[1] < balanced(config, 2, 1024 * 16)[1]);
}

TEST_CASE("make_stages: the units of given blocks")
{
  CHECK(make_stages(preset("nano"), std::vector<std::int64_t>{1, 2, 1}) ==
        std::vector<Range>{{0, 3}, {3, 4}, {7, 3}});
  CHECK(make_stages(preset("nano"), std::vector<std::int64_t>{4}) == std::vector<Range>{{0, 10}});
  CHECK_THROWS_AS(make_stages(preset("nano"), std::vector<std::int64_t>{1, 2}), Error);
  CHECK_THROWS_AS(make_stages(preset("nano"), std::vector<std::int64_t>{4, 0}), Error);
  CHECK_THROWS_AS(make_stages(preset("nano"), 5, 64), Error);
  CHECK_THROWS_AS(make_stages(preset("nano"), 0, 64), Error);
}

TEST_CASE("parse_partition: what fits the model and the stages is taken")
{
  CHECK(parse_partition("2,2", preset("nano"), 2) == std::vector<std::int64_t>{2, 2});
  CHECK(parse_partition("4", preset("nano"), 1) == std::vector<std::int64_t>{4});
  CHECK(parse_partition("1,2,1", preset("nano"), 3) == std::vector<std::int64_t>{1, 2, 1});
  CHECK(parse_partition("3,3,4,2", preset("gpt2"), 4) == std::vector<std::int64_t>{3, 3, 4, 2});
}

TEST_CASE("parse_partition: what does not fit is refused, with one that does")
{
  CHECK_THAT(refusal("3,3", 2), Contains("--partition=3,3: 2 stages with 6 blocks") && Contains("has 4 blocks") &&
                                    Contains("example --partition=2,2."));
  CHECK_THAT(refusal("2,1", 2), Contains("2 stages with 3 blocks"));
  CHECK_THAT(refusal("2,2", 3), Contains("2 stages with 4 blocks") && Contains("3 stages are asked for") &&
                                    Contains("--partition=2,1,1."));
  CHECK_THAT(refusal("1,1,1,1", 2), Contains("4 stages"));
  for (const auto& [text, word] :
       std::vector<std::pair<std::string, std::string>>{{"4,0", "'0'"},
                                                        {"5,-1", "'5'"},
                                                        {"-1,5", "'-1'"},
                                                        {"two,2", "'two'"},
                                                        {"2,2x", "'2x'"},
                                                        {"", "''"},
                                                        {"2,2,", "''"},
                                                        {",4", "''"},
                                                        {"2, 2", "' 2'"},
                                                        {"2;2", "'2;2'"},
                                                        {"2.0,2", "'2.0'"},
                                                        {"99999999999999999999,1", "'99999999999999999999'"}}) {
    INFO(text);
    CHECK_THAT(refusal(text, 2),
               Contains("--partition=" + text + ": " + word + " is not a number of blocks from 1 to 4") &&
                   Contains("--partition=2,2."));
  }
}

TEST_CASE("stage_costs: over all stages the operations of a step, forwards, backwards and again")
{
  constexpr std::int64_t rows = 192, T = 64;
  for (const char* name : {"nano", "mini", "gpt2"})
    for (const int stages : {1, 2, 4})
      for (const bool recompute : {false, true}) {
        INFO(name << ", " << stages << " stages, recompute " << recompute);
        const ModelConfig config = preset(name);
        std::int64_t forward = 0, backward = 0, again = 0;
        for (const ActionCosts& cost : stage_costs(config, make_stages(config, stages, T), rows, T, recompute)) {
          forward += cost.forward;
          backward += cost.backward_input + cost.backward_weights;
          again += cost.again;
        }
        CHECK(backward == 2 * forward);
        CHECK(static_cast<double>(forward + backward) == step_flops(config, rows, T, false));
        const auto of_head = static_cast<std::int64_t>(unit_flops(config, 2 * config.layers + 1, rows, T));
        CHECK(again == (recompute ? forward - of_head : 0));
      }
}

TEST_CASE("stage_costs: attention's products of activations count in B alone")
{
  constexpr std::int64_t rows = 4 * 1024, T = 1024, s = T, h = 768;
  const ModelConfig config = preset("gpt2");
  const std::vector<ActionCosts> costs = stage_costs(config, make_stages(config, 12, T), rows, T, false);
  const std::int64_t b_s_h = rows * h, small = rows * 2 * 13 * h;  // biases and norms are not in the paper's table
  const ActionCosts& block = costs[1];
  CHECK(block.forward == b_s_h * (24 * h + 4 * s) + small);
  CHECK(block.backward_input == b_s_h * (24 * h + 8 * s) + small);
  CHECK(block.backward_weights == b_s_h * 24 * h + small);
  CHECK(costs[0].forward == block.forward);  // the embedding counts nothing
  CHECK(costs[11].forward == block.forward + rows * 2 * (config.vocabulary * h + 2 * h));
}
