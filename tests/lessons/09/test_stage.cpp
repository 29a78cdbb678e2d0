// The stages of lesson 09: what each has of a model, and the copy of the token embedding.

#include <vector>

#include "lessons/parallel/pipeline/stage.hpp"
#include "lessons/parallel/pipeline/stages.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

const ModelConfig config = tiny_config(4, 2, 12, 7);
const ParameterTable table(config);

/// Ways to cut the four blocks.
const std::vector<std::vector<std::int64_t>> partitions{{4}, {1, 3}, {2, 1, 1}, {1, 1, 1, 1}};

std::vector<PipelineStage> stages_of(const std::vector<std::int64_t>& blocks)
{
  return describe_stages(table, make_stages(config, blocks));
}

/// Whether a view is the tensor of the whole model at @p whole, seen in the stage's own vector.
bool same_place(const Tensor& view, const Tensor& whole, const PipelineStage& stage, const Tensor& flat,
                const Tensor& all)
{
  const std::int64_t offset = (whole.raw() - all.raw()) - bytes_of(DType::f32) * stage.elements.first;
  return view.raw() == flat.raw() + offset && view.shape() == whole.shape();
}

}  // namespace

TEST_CASE("describe_stages: stages have every element of the table once, in order")
{
  for (const auto& blocks : partitions) {
    std::int64_t next = 0, unit = 0;
    const std::vector<PipelineStage> stages = stages_of(blocks);
    REQUIRE(stages.size() == blocks.size());
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const PipelineStage& stage = stages[s];
      INFO("stage " << s << " of " << stages.size());
      CHECK(stage.number == static_cast<int>(s));
      CHECK(stage.first == (s == 0));
      CHECK(stage.last == (s + 1 == stages.size()));
      CHECK(stage.units.first == unit);
      CHECK(stage.elements.first == next);
      CHECK(ParameterTable(config, {}, stage.units).elements() == stage.elements.count);
      unit = stage.units.end();
      next = stage.elements.end();
    }
    CHECK(unit == unit_count(config));
    CHECK(next == table.elements());
  }
}

TEST_CASE("PipelineStage: only the last of several stages has a copy of the token embedding, after its own")
{
  const Range token = table.entries().front().elements;
  for (const auto& blocks : partitions)
    for (const PipelineStage& stage : stages_of(blocks)) {
      INFO("stage " << stage.number << " of " << blocks.size());
      const bool copies = stage.last && !stage.first;
      CHECK(stage.copied == (copies ? token : Range{}));
      CHECK(stage.size() == stage.elements.count + (copies ? token.count : 0));
      if (stage.first) CHECK(stage.token(table) == token);
      if (copies) CHECK(stage.token(table) == Range{stage.elements.count, token.count});
      if (!stage.first && !stage.last) CHECK(stage.token(table).empty());
    }
}

TEST_CASE("stage_tensors: the parameters of a stage are those of the whole model, and what it has not is empty")
{
  Laboratory lab;
  const Tensor all = lab.zeros(DType::f32, {table.elements()});
  const ModelTensors whole = model_tensors(table, all);
  for (const auto& blocks : partitions)
    for (const PipelineStage& stage : stages_of(blocks)) {
      INFO("stage " << stage.number << " of " << blocks.size());
      const Tensor flat = lab.zeros(DType::f32, {stage.size()});
      const ModelTensors own = stage_tensors(table, stage, flat);
      const auto same = [&](const Tensor& view, const Tensor& of_whole) {
        return same_place(view, of_whole, stage, flat, all);
      };
      CHECK(own.embedding.token.empty() == !stage.first);
      CHECK(own.head.token.empty() == !stage.last);
      if (stage.first) CHECK(same(own.embedding.token, whole.embedding.token));
      if (stage.first) CHECK(same(own.embedding.position, whole.embedding.position));
      if (stage.last) CHECK(same(own.head.norm_weight, whole.head.norm_weight));
      if (stage.last) CHECK(same(own.head.norm_bias, whole.head.norm_bias));
      if (stage.last) CHECK(own.head.token.raw() == flat.slice(stage.token(table)).raw());
      if (stage.last) CHECK(own.head.token.shape() == whole.head.token.shape());
      const auto first = static_cast<std::size_t>(stage.first ? 0 : stage.units.first - 1);
      CHECK(own.branches.size() == static_cast<std::size_t>(2 * blocks[static_cast<std::size_t>(stage.number)]));
      for (std::size_t i = 0; i < own.branches.size(); ++i) {
        const BranchTensors &mine = own.branches[i], &of_whole = whole.branches[first + i];
        CHECK(same(mine.norm_weight, of_whole.norm_weight));
        CHECK(same(mine.norm_bias, of_whole.norm_bias));
        CHECK(same(mine.in_weight, of_whole.in_weight));
        CHECK(same(mine.in_bias, of_whole.in_bias));
        CHECK(same(mine.out_weight, of_whole.out_weight));
        CHECK(same(mine.out_bias, of_whole.out_bias));
      }
    }
}

TEST_CASE(
    "stage_tensors, gradient_layout: the head's part of the tied embedding is a separate sum where one stage has "
    "both "
    "ends")
{
  Laboratory lab;
  const Range token = table.entries().front().elements;
  const Tensor tied = lab.zeros(DType::f32, {token.count});
  for (const auto& blocks : partitions) {
    const std::vector<PipelineStage> stages = stages_of(blocks);
    for (const PipelineStage& stage : stages) {
      const GradientLayout layout = gradient_layout(table, stage, DType::bf16);
      CHECK(layout.elements == stage.size());
      CHECK(layout.type == DType::bf16);
      CHECK(layout.tied == (stages.size() == 1 ? token : Range{}));
    }
    const Tensor flat = lab.zeros(DType::f32, {stages.back().size()});
    const ModelTensors own = stage_tensors(table, stages.back(), flat, tied);
    CHECK(own.head.token.raw() == tied.raw());
    CHECK(own.head.token.shape() == table.entries().front().stored);
    if (stages.size() == 1) CHECK(own.embedding.token.raw() == flat.raw());
  }
}
