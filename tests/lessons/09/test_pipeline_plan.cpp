// The plan of lesson 09: stages of each rank, traffic, and memory.

#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "lessons/parallel/pipeline/pipeline.hpp"
#include "lessons/parallel/pipeline/pipeline_plan.hpp"
#include "lessons/parallel/pipeline/stash.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/lessons/09/in_halves.hpp"
#include "tests/one_machine.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t B = 2, T = 8, C = 16;
const ModelConfig config = tiny_config(6, 2, C, T);

/// `--schedule` and what goes with it.
PipelineOptions with(ScheduleKind kind, int virtual_stages = 0, const std::string& partition = "")
{
  return {kind, virtual_stages, partition};
}
const PipelineOptions all_kinds[] = {with(ScheduleKind::gpipe), with(ScheduleKind::one_forward_one_backward),
                                     with(ScheduleKind::interleaved)};

PipelinePlan plan_of(const PipelineOptions& options, int ranks, std::int64_t passes, DType type = DType::f32,
                     bool recompute = false)
{
  return {config,
          {.type = type, .B = B, .T = T, .recompute = recompute},
          stage_units(options, config, ranks, T),
          make_schedule(options, ranks, passes)};
}

}  // namespace

TEST_CASE("PipelinePlan: stage s is on rank s mod p, and each element of the model is in one stage")
{
  for (const PipelineOptions& options : all_kinds)
    for (const int p : {2, 3}) {
      const PipelinePlan plan = plan_of(options, p, 6);
      INFO(plan.schedule.name << ", p = " << p);
      CHECK(std::ssize(plan.stages) == p * options.stages_of_a_rank());
      for (int rank = 0; rank < p; ++rank) {
        const std::vector<PipelineStage> own = plan.stages_of(rank);
        CHECK(std::ssize(own) == options.stages_of_a_rank());
        for (std::size_t i = 0; i < own.size(); ++i) CHECK(own[i].number == rank + static_cast<int>(i) * p);
      }
      std::int64_t next = 0;
      for (const PipelineStage& stage : plan.stages) {
        CHECK(stage.elements.first == next);
        next = stage.elements.end();
      }
      CHECK(next == plan.table.elements());
    }
}

TEST_CASE("PipelinePlan: shapes are those of the stages")
{
  for (const PipelineOptions& options : all_kinds) {
    const PipelinePlan plan = plan_of(options, 2, 4);
    INFO(plan.schedule.name);
    CHECK(plan.rows() == Shape{B * T, C});
    std::int64_t blocks = 0;
    for (const PipelineStage& stage : plan.stages) {
      const ActivationShape shape = plan.shape_of(stage);
      CHECK(shape.units == stage.units);
      CHECK(shape.has_embedding() == stage.first);
      CHECK(shape.has_head(config) == stage.last);
      blocks += shape.blocks(config);
    }
    CHECK(blocks == config.layers);
  }
}

TEST_CASE(
    "PipelinePlan: activations are what the stages keep of all micro-batches in flight, as the ledger counts them")
{
  for (const bool recompute : {false, true})
    for (const PipelineOptions& options : all_kinds)
      for (const DType type : {DType::f32, DType::bf16}) {
        const PipelinePlan plan = plan_of(options, 2, 4, type, recompute);
        for (const int rank : {0, 1}) {
          INFO(plan.schedule.name << ", " << name_of(type) << ", recompute " << recompute << ", rank " << rank);
          Laboratory lab;
          const Workspace work(lab.memory(), config, plan.shape);
          std::vector<Stash> stashes;
          for (const PipelineStage& stage : plan.stages_of(rank))
            stashes.emplace_back(lab.memory(), config, plan.shape_of(stage), work, plan.in_flight(stage));
          CHECK(plan.activation_bytes(rank) == lab.ledger().current(Tier::device)[Category::activations]);
        }
      }
}

TEST_CASE("PipelinePlan: of stages that are equal, with m micro-batches a rank keeps m or min(p - rank, m) of them")
{
  const std::int64_t m = 8;
  for (const int rank : {1, 2}) {  // neither embedding nor head
    const auto kept = [&](ScheduleKind kind) {
      return plan_of(with(kind, 0, "1,2,2,1"), 4, m).activation_bytes(rank);
    };
    const ActivationShape shape{.type = DType::f32, .B = B, .T = T, .units = {3, 4}};
    const std::int64_t one = kept_bytes(config, shape);
    CHECK(kept(ScheduleKind::gpipe) == m * one);
    CHECK(kept(ScheduleKind::one_forward_one_backward) == (4 - rank) * one);
  }
}

TEST_CASE("row_traffic: m B T C elements cross each boundary between stages in either direction")
{
  for (const PipelineOptions& options : all_kinds)
    for (const int p : {1, 2, 3})
      for (const DType type : {DType::f32, DType::bf16}) {
        if (p == 1 && options.schedule == ScheduleKind::interleaved) continue;
        const std::int64_t m = 6;
        const PipelinePlan plan = plan_of(options, p, m, type);
        INFO(plan.schedule.name << ", p = " << p << ", " << name_of(type));
        Traffic all;
        for (int rank = 0; rank < p; ++rank) {
          const Traffic sent = row_traffic(plan.schedule, rank, type, plan.rows());
          CHECK(row_traffic(in_halves(plan.schedule), rank, type, plan.rows()) == sent);  // W sends nothing
          all += sent;
        }
        const std::int64_t boundaries = plan.schedule.stages() - 1;
        CHECK(all == Traffic{2 * boundaries * m, 2 * boundaries * m * bytes_of(type) * B * T * C});
      }
  const PipelineSchedule schedule = gpipe(3, 5);
  const auto messages = [&](int rank) { return row_traffic(schedule, rank, DType::f32, {1, 1}).messages; };
  CHECK((messages(0) == 5 && messages(1) == 10 && messages(2) == 5));
  const PipelineSchedule forwards = forward_only(2, 2, 3);  // from stage 0 to 1, to 2, to 3
  CHECK(row_traffic(forwards, 0, DType::f32, {1, 1}).messages == 6);
  CHECK(row_traffic(forwards, 1, DType::f32, {1, 1}).messages == 3);
}

TEST_CASE("tied_calls: the first and the last rank send V C elements each by ring, the others none")
{
  const std::int64_t elements = token_elements(ParameterTable(config));
  CHECK(elements == 16 * C);  // with padding
  const Topology two = one_machine(2);
  for (const int p : {2, 3, 4})
    for (int rank = 0; rank < p; ++rank) {
      const std::vector<CollectiveShape> calls = tied_calls(p, rank, Algorithm::ring, DType::f32, elements);
      CHECK(calls.size() == (rank == 0 || rank == p - 1 ? 1 : 0));
      for (const int end : {0, 1})
        if (!calls.empty())
          CHECK(expected_traffic(calls, two, end) ==
                expected_traffic({"all-reduce", Algorithm::ring, DType::f32, elements}, two, end));
    }
  CHECK(tied_calls(1, 0, Algorithm::ring, DType::f32, elements).empty());
}

TEST_CASE("message_bytes: the channels, and scratch, which the ends have more of")
{
  const PipelinePlan plan = plan_of(with(ScheduleKind::gpipe), 3, 4);
  const auto bytes = [&](int rank) {
    return message_bytes(plan, Algorithm::ring, DType::f32, one_machine(3), one_machine(2), rank);
  };
  const auto channels = [&](int rank) { return Pipeline::bytes(3, 1, rank, DType::f32, plan.rows()); };
  const auto scratch = [&](int rank) { return bytes(rank) - channels(rank); };
  const std::int64_t of_line = scratch_bytes({{"all-reduce", Algorithm::ring, DType::i64, 5}}, one_machine(3), 1);
  const std::int64_t of_ends =
      scratch_bytes({{"all-reduce", Algorithm::ring, DType::f32, token_elements(plan.table)}}, one_machine(2), 0);
  CHECK(scratch(1) == of_line);
  for (const int end : {0, 2}) CHECK(scratch(end) == scratch(1) + of_ends);
  CHECK(of_ends > 0);
}

TEST_CASE("describe_stages: the blocks of each stage, and how much more than the mean the largest works")
{
  CHECK_THAT(describe_stages(plan_of(with(ScheduleKind::gpipe, 0, "1,2,3"), 3, 4)),
             Contains("stages of 1, 2, 3 blocks (the largest has 1."));
  CHECK(describe_stages(plan_of(with(ScheduleKind::gpipe), 1, 4)) ==
        "stages of 6 blocks (the largest has 1.00 times the mean work)");
  const PipelinePlan plan = plan_of(with(ScheduleKind::gpipe, 0, "3,3"), 2, 4);
  CHECK(plan.costs[1].forward > plan.costs[0].forward);  // the head
}
