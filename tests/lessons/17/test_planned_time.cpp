// The planner's model of time: its parts, and what each of them depends on.

#include <algorithm>
#include <cmath>

#include "lessons/17_choose_a_layout/plan.hpp"
#include "lessons/17_choose_a_layout/sizes.hpp"
#include "lessons/17_choose_a_layout/time.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// A machine whose products reach their peak at once, and whose memory, host and messages take no time.
Machine ideal()
{
  Machine machine;
  machine.name = "ideal";
  machine.gpus_per_node = 8;
  for (Quantity Machine::*fact : {&Machine::memory, &Machine::memory_rate, &Machine::network, &Machine::host_memory,
                                  &Machine::host_memory_rate, &Machine::host_rate, &Machine::disk_rate})
    (machine.*fact).value = 1e30;
  machine.half.value = machine.single.value = 1e12;
  machine.network_latency.value = 0;
  TimeConstants& c = machine.constants;
  c.product_share.value = c.memory_share.value = c.network_share.value = c.gather_share.value = 1;
  c.node_rate.value = c.slow_node_rate.value = 1e30;
  return machine;
}

Job job_of(std::int64_t layers = 8)
{
  return {.model = {"test", layers, 16, 1024, 512, 32000}, .global_batch = 64, .system = System::megatron};
}

}  // namespace

TEST_CASE("on an ideal machine a step is its operations")
{
  const Job job = job_of();
  const double kernels = 0.05;  // their launches, 5 us each, are in every step
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    const StepTime time = step_time(job, {.micro_batch = 8, .recompute = recompute}, ideal());
    const double V = 32000, head = 6 * V * 1024, blocks = 8 * (72 * 1024.0 * 1024 + 12 * 1024 * 512.0);
    const double flops = 64 * 512 * (head + blocks * (recompute == Recompute::full ? 4.0 / 3 : 1));
    CHECK(std::abs(time.total() - flops / 1e12) < kernels);
    CHECK(time.bubble == 0);
    CHECK(time.pipeline == 0);
    CHECK(time.tensor == 0);
    CHECK(time.data == 0);
  }
}

TEST_CASE("the bubble is (p - 1) / v passes of a stage")
{
  const Job job = job_of(16);
  const StepTime plain = step_time(job, {.pp = 4, .micro_batch = 1}, ideal());
  const StepTime interleaved = step_time(job, {.pp = 4, .micro_batch = 1, .chunks = 2}, ideal());
  CHECK(interleaved.bubble == Approx(plain.bubble / 2));
  Job half = job;
  half.global_batch = 32;
  CHECK(step_time(half, {.pp = 4, .micro_batch = 1}, ideal()).bubble == Approx(plain.bubble));
  CHECK(step_time(half, {.pp = 4, .micro_batch = 1}, ideal()).compute == Approx(plain.compute / 2));
}

TEST_CASE("messages take bytes over rate, inside a node and between nodes")
{
  Machine machine = ideal();
  machine.constants.node_rate.value = 1e11;
  machine.network.value = 8e10;  // 1e10 for each GPU of a node, when all of them send
  const Job job = job_of();
  const double rows = 64.0 * 512 * 1024 * 2;  // bytes of all rows of a step

  // Two sums in each pass of a layer, one for the embedding and one for the head: 2 (t-1)/t of the rows each.
  const StepTime tensor = step_time(job, {.tp = 4, .micro_batch = 8}, machine);
  CHECK(tensor.tensor + tensor.hidden == Approx((8 * 4 + 2) * 1.5 * rows / 1e11));
  machine.constants.hidden_sums.value = 1;
  CHECK(step_time(job, {.tp = 4, .micro_batch = 8}, machine).tensor == Approx((8 * 2 + 2) * 1.5 * rows / 1e11));

  // Gradients of 32 bits among 16 replicas of two nodes, through one ring: the network of one node.
  const double P = static_cast<double>(job.model.parameters());
  CHECK(step_time(job, {.dp = 16, .micro_batch = 4}, machine).data == Approx(2.0 * 15 / 16 * 4 * P / 8e10));
  CHECK(step_time(job, {.dp = 8, .micro_batch = 8}, machine).data == Approx(2.0 * 7 / 8 * 4 * P / 1e11));
  CHECK(step_time(job, {.dp = 8, .micro_batch = 8, .zero = 1}, machine).data ==
        Approx(7.0 / 8 * (4 + 2) * P / 1e11));
  // Beside four parts the rings of four groups share it.
  const double shard = static_cast<double>(parameters_of_stage(job.model, 4, 1, 0));
  CHECK(step_time(job, {.dp = 16, .tp = 4, .micro_batch = 4}, machine).data ==
        Approx(2.0 * 15 / 16 * 4 * shard / (8e10 / 4)));

  // Rows to the next stage and gradients back, of 1 / t from each rank; the tied embedding's gradient at the end.
  const StepTime stages = step_time(job, {.tp = 8, .pp = 2, .micro_batch = 8}, machine);
  CHECK(stages.pipeline == Approx((2 * 8 + 2) * rows / 8 / 8 / 1e10));
}

TEST_CASE("experts: products of k experts a token, and four exchanges a layer with experts")
{
  Machine machine = ideal();
  machine.constants.node_rate.value = 1e11;
  Job job = job_of();
  job.system = System::rankwise;
  const PlannedLayout layout{.dp = 8, .ep = 4, .micro_batch = 8};
  const StepTime dense = step_time(job, layout, machine);
  job.model.experts = {.count = 4, .per_token = 2, .every = 2};
  const StepTime mixed = step_time(job, layout, machine);
  const double rows = 64.0 * 512 / 8;  // of a replica in a step
  CHECK(mixed.compute - dense.compute == Approx(4 * 3 * 2 * 8 * rows * 1024 * 1024 / 1e12).epsilon(0.01));
  CHECK(mixed.experts == Approx(4 * 4 * 2 * rows * 1024 * 2 * 3 / 4 / 1e11));
  CHECK(dense.experts == 0);
}

TEST_CASE("the host decides where the device is faster")
{
  Machine machine = ideal();
  machine.constants.host.value = 0.1;
  const Job job = job_of();
  const StepTime time = step_time(job, {.micro_batch = 1}, machine);
  CHECK(time.compute + time.host == Approx(64 * (8 * 0.3) + 64 * 6.0 * 32000 * 1024 * 512 / 1e12).epsilon(0.01));
}

TEST_CASE("the search: the fastest first, every one of them fits, and nothing faster fits")
{
  Machine machine = ideal();
  machine.constants.node_rate.value = 1e11;
  machine.network.value = 8e10;
  machine.memory_rate.value = 1e12;
  const Job job = job_of();
  machine.memory.value =
      0.9 * fastest(job, {}, machine, 16, 1).front().memory.total();  // now that one does not fit
  const std::vector<Plan> plans = fastest(job, {}, machine, 16, 5);
  REQUIRE(plans.size() == 5);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    CHECK(fits(plans[i].memory, machine));
    CHECK(plans[i].layout.gpus() == 16);
    CHECK(obstacle(job.system, job.model, plans[i].layout, job.global_batch).empty());
    if (i > 0) CHECK(plans[i].time.total() >= plans[i - 1].time.total());
  }
  int faster = 0;
  for (const PlannedLayout& layout : all_layouts(job.system, job.model, {}, 16, job.global_batch, 8)) {
    if (step_time(job, layout, machine).total() >= plans[0].time.total()) continue;
    CHECK_FALSE(fits(largest_memory(job, layout), machine));
    ++faster;
  }
  CHECK(faster > 0);
  CHECK(fastest(job, {.tp = 16, .pp = 1}, machine, 16, 5).front().layout.tp == 16);
  CHECK(fastest(job, {.tp = 3}, machine, 16, 5).empty());
}

TEST_CASE("any_fits: as long as the search finds a layout, though others need more")
{
  Machine machine = ideal();
  const Job job = job_of();
  const double least = smallest(job, {}, machine, 16)->memory.total();
  for (const double share : {0.5, 0.99, 1.0, 1.01, 1.5, 3.0}) {
    machine.memory.value = share * least;
    CHECK(any_fits(job, {}, machine, 16) == (share >= 1));
    CHECK(any_fits(job, {}, machine, 16) == !fastest(job, {}, machine, 16, 1).empty());
  }
}

TEST_CASE(
    "ZeRO-3 sends parameters twice and gradients once for each micro-batch, and each layer's fetch takes a while")
{
  Machine machine = ideal();
  machine.constants.node_rate.value = 1e11;
  machine.constants.gather.value = 1e-3;
  const Job job = job_of();
  const double P = static_cast<double>(job.model.parameters()), m = 4;
  const PlannedLayout layout{.dp = 8, .micro_batch = 2, .zero = 3};
  const double messages = m * 7 / 8 * (2 + 2 + 4) * P / 1e11 + m * 3 * 8 * 1e-3;
  const StepTime exposed = step_time(job, layout, machine);
  CHECK(exposed.data == Approx(messages));
  machine.constants.hidden_gathers.value = 1;
  CHECK(step_time(job, layout, machine).data == Approx(std::max(0.0, messages - exposed.compute)).margin(1e-9));
}

TEST_CASE("an optimizer off the device takes the time of the host's links, memory and disk, and the host's memory")
{
  Machine machine = ideal();
  machine.host_rate.value = 1e10, machine.host_memory_rate.value = 1e11, machine.disk_rate.value = 1e9;
  Job job = job_of();
  job.system = System::deepspeed;
  PlannedLayout layout{.dp = 8, .micro_batch = 2, .zero = 1, .optimizer = OptimizerPlace::host};
  const double mine = static_cast<double>(job.model.parameters()) / 8;
  const double host = 4 * mine / 1e10 + 28 * mine * 8 / 1e11;
  CHECK(step_time(job, layout, machine).update == Approx(host + 2e-3));
  const RankMemory memory = largest_memory(job, layout);
  CHECK(memory.host == Approx(12 * mine));
  machine.host_memory.value = 8 * memory.host * 1.01;
  CHECK(fits(memory, machine));
  machine.host_memory.value = 8 * memory.host * 0.99;
  CHECK_FALSE(fits(memory, machine));
  layout.optimizer = OptimizerPlace::disk;
  CHECK(step_time(job, layout, machine).update == Approx(host + 24 * mine * 8 / 1e9 + 2e-3));
}

TEST_CASE("reason names what differs most")
{
  Plan faster, slower;
  faster.time.compute = 10, faster.time.bubble = 1;
  slower.time.compute = 9.5, slower.time.bubble = 3;
  CHECK(reason(faster, slower) == "+13.6 %: 2 s more bubble, 0.5 s less computation");
}
