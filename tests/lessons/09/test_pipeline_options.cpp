// The options of lesson 09: their meaning, and refused combinations.

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/parallel/pipeline/pipeline_options.hpp"
#include "lessons/parallel/pipeline/stages.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

constexpr ScheduleKind gpipe_kind = ScheduleKind::gpipe, in_turns = ScheduleKind::one_forward_one_backward,
                       in_groups = ScheduleKind::interleaved;

/// The message of check_pipeline() for the four blocks of nano; empty if it accepts the pipeline.
std::string refusal(const PipelineOptions& options, int ranks, std::int64_t sequences, std::int64_t micro_batches)
{
  try {
    check_pipeline(options, preset("nano"), ranks, sequences, micro_batches);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("stages_of_a_rank: one, or two if interleaved, unless --virtual-stages is given")
{
  for (const ScheduleKind kind : {gpipe_kind, in_turns})
    CHECK(PipelineOptions{kind, 0, ""}.stages_of_a_rank() == 1);
  CHECK(PipelineOptions{in_groups, 0, ""}.stages_of_a_rank() == 2);
  CHECK(PipelineOptions{in_groups, 1, ""}.stages_of_a_rank() == 1);
  CHECK(PipelineOptions{in_groups, 4, ""}.stages_of_a_rank() == 4);
}

TEST_CASE(
    "default_micro_batch: the most sequences that make at least max(p, 4) micro-batches, in groups of p if need be")
{
  const PipelineOptions plain{in_turns, 0, ""}, groups{in_groups, 0, ""};
  CHECK(default_micro_batch(plain, 16, 1) == 4);
  CHECK(default_micro_batch(plain, 16, 2) == 4);
  CHECK(default_micro_batch(plain, 16, 3) == 4);
  CHECK(default_micro_batch(plain, 16, 8) == 2);
  CHECK(default_micro_batch(plain, 18, 4) == 3);  // 4 do not divide 18
  CHECK(default_micro_batch(plain, 7, 2) == 1);
  CHECK(default_micro_batch(plain, 2, 4) == 1);
  CHECK(default_micro_batch(groups, 16, 2) == 4);
  CHECK(default_micro_batch(groups, 20, 2) == 5);
  CHECK(default_micro_batch(groups, 18, 3) == 3);  // 6 micro-batches
  CHECK(default_micro_batch(groups, 12, 3) == 2);  // not 3, which would make four
  CHECK(default_micro_batch(groups, 16, 3) == 1);  // no number of them is a multiple of 3
  for (int p = 1; p <= 8; ++p)
    for (std::int64_t share = 1; share <= 40; ++share) {
      const std::int64_t B = default_micro_batch(plain, share, p);
      CAPTURE(p, share, B);
      CHECK(share % B == 0);
      CHECK((B == 1 || share / B >= std::max(p, 4)));
      for (std::int64_t larger = B + 1; larger <= share; ++larger)
        CHECK((share % larger != 0 || share / larger < std::max(p, 4)));
    }
}

TEST_CASE("check_pipeline: accepts every pipeline that has a schedule")
{
  CHECK(refusal({gpipe_kind, 0, ""}, 4, 16, 1).empty());
  CHECK(refusal({in_turns, 1, ""}, 4, 16, 2).empty());
  CHECK(refusal({in_groups, 0, ""}, 2, 16, 4).empty());
  CHECK(refusal({in_groups, 1, ""}, 1, 16, 4).empty());
  CHECK(refusal({in_turns, 0, "1,3"}, 2, 16, 4).empty());
}

TEST_CASE("check_pipeline: refuses other pipelines, with the possible values")
{
  CHECK(refusal({in_turns, 0, ""}, 5, 16, 8) ==
        "error: 5 ranks with a stage each make 5 stages, but the model has 4 blocks and every stage needs one.\n"
        "       Use at most 4 stages, with fewer ranks, or a model with more --layers.");
  CHECK_THAT(refusal({in_groups, 0, ""}, 4, 16, 8),
             Contains("4 ranks with 2 stages each make 8 stages") && Contains("fewer ranks or --virtual-stages"));
  CHECK(refusal({in_groups, 0, ""}, 2, 18, 9) ==
        "error: --schedule=interleaved takes micro-batches in groups of 2, one for each rank; there are 9.\n"
        "       Use --micro-batch=1, 3, 9, another --global-batch, or --schedule=1f1b.");
  CHECK(refusal({in_groups, 0, ""}, 2, 7, 7) ==
        "error: --schedule=interleaved takes micro-batches in groups of 2, one for each rank; there are 7.\n"
        "       Use another --global-batch, or --schedule=1f1b.");
  CHECK_THAT(refusal({in_turns, 2, ""}, 2, 16, 4), Contains("--virtual-stages=2 needs --schedule=interleaved"));
  CHECK_THAT(refusal({in_groups, -1, ""}, 2, 16, 4), Contains("--virtual-stages=-1 is not a number of stages"));
  CHECK_THAT(refusal({in_groups, 0, ""}, 1, 16, 4), Contains("2 stages on a single rank"));
  CHECK_THAT(refusal({in_turns, 0, "1,2"}, 2, 16, 4), Contains("use for example --partition=2,2."));
  CHECK_THAT(refusal({in_groups, 0, "2,2"}, 2, 16, 4), Contains("--partition=1,1,1,1."));
}

TEST_CASE("micro_batches_remedy: the sizes that give a number of micro-batches that fits, at most eight")
{
  CHECK(micro_batches_remedy(16, [](std::int64_t m) { return m >= 4; }) == "--micro-batch=1, 2, 4, ");
  CHECK(micro_batches_remedy(2, [](std::int64_t m) { return m >= 4; }).empty());
  CHECK(micro_batches_remedy(1 << 9, [](std::int64_t) { return true; }) ==
        "--micro-batch=1, 2, 4, 8, 16, 32, 64, 128, ");
}

TEST_CASE("make_schedule: the one that was asked for")
{
  CHECK(make_schedule({gpipe_kind, 0, ""}, 3, 4).actions == gpipe(3, 4).actions);
  CHECK(make_schedule({in_turns, 0, ""}, 3, 4).actions == one_forward_one_backward(3, 4).actions);
  CHECK(make_schedule({in_groups, 0, ""}, 3, 6).actions == interleaved(3, 2, 6).actions);
  CHECK(make_schedule({in_groups, 3, ""}, 3, 6).actions == interleaved(3, 3, 6).actions);
  OptionTable table{"test", "names"};
  PipelineOptions options;
  declare(table, options);
  CHECK(make_schedule(options, 2, 4).name == "1f1b");
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
    std::string program = "test", argument = std::string("--schedule=") + name;
    char* arguments[] = {program.data(), argument.data()};
    table.parse(2, arguments);
    CHECK(make_schedule(options, 2, 4).name == name);
  }
}

TEST_CASE("stage_units: by work, or as --partition says")
{
  const ModelConfig nano = preset("nano");
  CHECK(stage_units({in_turns, 0, ""}, nano, 2, 64) == make_stages(nano, 2, 64));
  CHECK(stage_units({in_groups, 0, ""}, nano, 2, 64) == make_stages(nano, 4, 64));
  CHECK(stage_units({in_turns, 0, "1,3"}, nano, 2, 64) == make_stages(nano, std::vector<std::int64_t>{1, 3}));
  CHECK_THROWS_AS(stage_units({in_groups, 0, "1,3"}, nano, 2, 64), UserError);
}
