// The executor of lesson 09: with any schedule each action receives the rows that were computed for it.

#include <cstdint>
#include <string>
#include <vector>

#include "lessons/parallel/pipeline/pipeline.hpp"
#include "lessons/parallel/pipeline/pipeline_plan.hpp"
#include "lessons/parallel/pipeline/schedule_check.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/lessons/09/in_halves.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

const Shape rows_shape{5, 8};

/// The ranks and their channels, with stages that record their input.
struct PipelineForTest {
  explicit PipelineForTest(int virtual_stages, std::uint32_t chaos = 0)
      : v(virtual_stages),
        before(communication()),
        pipeline(test.group, v, with(chaos), DType::f32, rows_shape, time)
  {
  }

  GroupSetup with(std::uint32_t chaos) const
  {
    GroupSetup setup = test.setup;
    setup.chaos = chaos;
    return setup;
  }
  std::int64_t communication() const { return test.ledger.current(Tier::device)[Category::communication]; }

  /// Element i of the output of stage @p stage, or of the gradient of its input.
  static float content(bool forwards, int micro_batch, int stage, std::int64_t i)
  {
    return static_cast<float>((forwards ? 1 : -1) * (100 * micro_batch + 10'000 * (stage + 1) + i));
  }
  /// Elements of @p rows that are not those.
  static std::int64_t wrong(const Tensor& rows, bool forwards, int micro_batch, int stage)
  {
    std::int64_t count = rows.shape() == rows_shape ? 0 : 1;
    for (std::int64_t i = 0; i < rows.elements(); ++i)
      count += rows.data<float>()[i] == content(forwards, micro_batch, stage, i) ? 0 : 1;
    return count;
  }

  /// Carries out a schedule; checks what arrives for each action.
  std::vector<PerformedAction> run(const PipelineSchedule& schedule)
  {
    std::size_t number = 0;
    const auto r = static_cast<std::size_t>(world().rank());
    return pipeline.run(schedule, [&](const Action& action, const Tensor& rows, const Tensor& buffer) {
      INFO(describe(action));
      CHECK(action == schedule.actions[r].at(number++));
      const bool forwards = action.kind == ActionKind::forward, last = action.stage == schedule.stages() - 1;
      const bool weights = action.kind == ActionKind::backward_weights, first = action.stage == 0;
      CHECK(rows.empty() == (weights || (forwards ? first : last)));
      CHECK(buffer.empty() == (weights || (forwards ? last : first)));
      for (std::int64_t i = 0; i < buffer.elements(); ++i)
        buffer.data<float>()[i] = content(forwards, action.micro_batch, action.stage, i);
      if (!rows.empty())  // behind what was written: rows and buffer are not the same
        CHECK(wrong(rows, forwards, action.micro_batch, action.stage + (forwards ? -1 : 1)) == 0);
    });
  }

  int v;
  GroupForTest test{Algorithm::ring};
  TimeLedger time;
  std::int64_t before;
  Pipeline pipeline;
};

/// Schedules of all kinds for the ranks of this test, with @p virtual_stages virtual stages.
std::vector<PipelineSchedule> schedules(int v)
{
  const int p = world().ranks();
  std::vector<PipelineSchedule> all;
  for (const int m : {1, p + 3}) all.push_back(forward_only(p, v, m));
  for (const int groups : {1, 3}) all.push_back(interleaved(p, v, groups * p));
  if (v > 1) return all;
  for (const int m : {1, p, 2 * p + 1})
    for (const PipelineSchedule& schedule : {gpipe(p, m), one_forward_one_backward(p, m)}) all.push_back(schedule);
  for (const int m : {p, 2 * p + 1}) all.push_back(in_halves(one_forward_one_backward(p, m)));
  return all;
}

}  // namespace

TEST_CASE("Pipeline: each action of any schedule gets the rows that were made for it, with chaos too")
{
  for (const std::uint32_t chaos : {0, 1, 2})
    for (const int v : {1, 2, 3}) {
      if (v > 1 && world().ranks() == 1) continue;
      PipelineForTest test(v, chaos);
      for (const PipelineSchedule& schedule : schedules(v)) {
        INFO(schedule.name << ", v = " << v << ", m = " << schedule.micro_batches << ", chaos " << chaos);
        check_schedule(schedule);
        test.run(schedule);
      }
    }
}

TEST_CASE("Pipeline: reports when each action ran, one after the other")
{
  PipelineForTest test(1);
  const PipelineSchedule schedule = one_forward_one_backward(world().ranks(), 4);
  const std::int64_t begin = event_clock_ns();
  const std::vector<PerformedAction> performed = test.run(schedule);
  const std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(world().rank())];
  REQUIRE(performed.size() == actions.size());
  std::int64_t last = begin;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    CHECK(performed[i].action == actions[i]);
    CHECK(performed[i].begin >= last);
    CHECK(performed[i].end >= performed[i].begin);
    last = performed[i].end;
  }
  CHECK(last <= event_clock_ns());
}

TEST_CASE("Pipeline: an action's time is that of computing, and of nothing that is waited for")
{
  PipelineForTest test(1);
  test.time.record();
  test.run(gpipe(world().ranks(), 2));
  for (const TraceEvent& event : test.time.events())
    CHECK((event.work == Work::compute || event.work == Work::waiting));
  const auto computed = [&] {
    std::ptrdiff_t count = 0;
    for (const TraceEvent& event : test.time.events()) count += event.work == Work::compute ? 1 : 0;
    return count;
  };
  CHECK(computed() == 4);
}

TEST_CASE("Pipeline: allocates Pipeline::bytes() and sends row_traffic()")
{
  const int p = world().ranks(), rank = world().rank();
  for (const int v : {1, 2}) {
    if (v > 1 && p == 1) continue;
    PipelineForTest test(v);
    CHECK(test.communication() - test.before == Pipeline::bytes(p, v, rank, DType::f32, rows_shape));
    for (const PipelineSchedule& schedule : schedules(v)) {
      INFO(schedule.name << ", v = " << v << ", m = " << schedule.micro_batches);
      test.test.traffic.clear();
      test.run(schedule);
      Traffic sent = test.test.traffic.of(rows_group);
      sent += test.test.traffic.of(gradients_group);
      CHECK(sent == row_traffic(schedule, rank, DType::f32, rows_shape));
    }
    CHECK(test.communication() - test.before == Pipeline::bytes(p, v, rank, DType::f32, rows_shape));
  }
}

TEST_CASE("Pipeline::bytes: two messages a channel; with virtual stages all ranks have four channels")
{
  const std::int64_t channel = 2 * 4 * 5 * 8;
  CHECK(Pipeline::bytes(1, 1, 0, DType::f32, rows_shape) == 0);
  CHECK(Pipeline::bytes(4, 1, 0, DType::f32, rows_shape) == 2 * channel);
  CHECK(Pipeline::bytes(4, 1, 1, DType::f32, rows_shape) == 4 * channel);
  CHECK(Pipeline::bytes(4, 1, 3, DType::f32, rows_shape) == 2 * channel);
  for (int rank = 0; rank < 4; ++rank) CHECK(Pipeline::bytes(4, 2, rank, DType::bf16, rows_shape) == 2 * channel);
  for (int rank = 0; rank < 2; ++rank) CHECK(Pipeline::bytes(2, 3, rank, DType::f32, rows_shape) == 4 * channel);
}
