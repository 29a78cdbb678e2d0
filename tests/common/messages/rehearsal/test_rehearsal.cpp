// Rehearsals: what one process writes down for all ranks takes the time that the ranks measure on their virtual clocks.

#include <numeric>

#include <fmt/format.h>

#include "common/collectives/chain.hpp"
#include "common/messages/communication_queue.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

constexpr double flops_per_s = 1e12;

/// What a rank does in a step with a group of all ranks.
using Step = std::function<void(Group& group, VirtualClock& clock, const Tensor& values)>;

/// The group of a step.
struct Situation {
  Algorithm algorithm = Algorithm::ring;
  std::string link = "5us,10GB/s";
  int ranks_per_node = 0;
};

/// n numbers of whatever value.
Buffer numbers(const DeviceMemory& memory, std::int64_t n)
{
  return {memory, Category::communication, DType::i64, {n}, "numbers"};
}

/// This rank's times of a step that all ranks run.
VirtualStep measured(const Situation& in, std::int64_t n, const Step& step)
{
  GroupForTest base(Algorithm::ring);
  VirtualClock clock(parse_link(in.link), flops_per_s);
  GroupSetup setup = base.setup;
  setup.algorithm = in.algorithm;
  setup.ranks_per_node = in.ranks_per_node;
  setup.clock = &clock;
  Group group("world", Communicator::world(), setup);
  const Buffer values = numbers(setup.memory, n);
  setup.stream->zero(values.tensor());
  clock.step();
  step(group, clock, values.tensor());
  return clock.step();
}

/// The times of all ranks in a rehearsal of N of them.
std::vector<VirtualStep> rehearsed(int N, const Situation& in, std::int64_t n, const Step& step)
{
  std::vector<StepScript> scripts(static_cast<std::size_t>(N));
  for (int r = 0; r < N; ++r) {
    const Rehearsal part({r, N}, scripts[static_cast<std::size_t>(r)]);
    const std::unique_ptr<Device> device = make_rehearsed_device(DeviceKind::cpu);
    const std::unique_ptr<Stream> stream = device->make_stream();
    MemoryLedger ledger;
    TrafficLedger traffic;
    RehearsedClock clock(parse_link(in.link), flops_per_s, part.script);
    const GroupSetup setup{.memory = {device.get(), &ledger},
                           .stream = stream.get(),
                           .traffic = &traffic,
                           .algorithm = in.algorithm,
                           .ranks_per_node = in.ranks_per_node,
                           .recorder = nullptr,
                           .clock = &clock};
    Group group("world", Communicator::world(), setup);
    const Buffer values = numbers(setup.memory, n);
    clock.step();
    step(group, clock, values.tensor());
    clock.step();
  }
  return replay(scripts, parse_link(in.link));
}

void check_same_times(const Situation& in, std::int64_t n, const Step& step)
{
  const VirtualStep here = measured(in, n, step);
  const auto all = rehearsed(world().ranks(), in, n, step);
  CHECK(all[static_cast<std::size_t>(world().rank())] == here);
}

}  // namespace

TEST_CASE("rehearsal: every collective takes the time that ranks measure")
{
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::halving, Algorithm::tree, Algorithm::hierarchical})
    for (const std::int64_t n : {0, 1, 1000, 300'000})
      for (const int ranks_per_node : {1, 2}) {
        if (algorithm == Algorithm::hierarchical && world().ranks() % ranks_per_node != 0) continue;
        INFO(fmt::format("{}, {} numbers, {} ranks a node", name_of(algorithm), n, ranks_per_node));
        const Situation in{algorithm, fmt::format("1us,10GB/s,50us,500MB/s,{}", ranks_per_node), ranks_per_node};
        check_same_times(in, n, [](Group& group, VirtualClock& clock, const Tensor& values) {
          all_reduce_sum(values, group);
          clock.charge_compute(1'000'000 * (group.rank() + 1));
          reduce_scatter_sum(values, group);
          all_gather(values, group);
          broadcast(values, group.ranks() - 1, group);
          reduce_sum(values, 0, group);
          barrier(group);
        });
      }
}

TEST_CASE("rehearsal: an all-to-all and a chain")
{
  const std::int64_t n = 12 * world().ranks();
  check_same_times({}, n, [](Group& group, VirtualClock&, const Tensor& values) {
    std::vector<std::int64_t> received(static_cast<std::size_t>(values.elements()));
    all_to_all(values, Tensor(std::span(received), {values.elements()}), group);
    chain_broadcast(values, 0, group);
  });
}

TEST_CASE("rehearsal: collectives of a queue run beside the computation")
{
  check_same_times({}, 100'000, [](Group& group, VirtualClock& clock, const Tensor& values) {
    TimeLedger time;
    CommunicationQueue queue(group, time);
    const Tensor first = values.slice({0, 60'000}), second = values.slice({60'000, 40'000});
    clock.charge_compute(50'000'000);
    Pending one = queue.start("first", [&](Group& g) { all_reduce_sum(first, g); });
    clock.charge_compute(20'000'000 * (1 + group.rank()));
    Pending two = queue.start("second", [&](Group& g) { reduce_scatter_sum(second, g); });
    one.wait();
    clock.charge_compute(1'000'000);
    two.wait();
    all_reduce_sum(first, group);
  });
}

TEST_CASE("rehearsal: more ranks than there are")
{
  const int N = 64;
  constexpr std::int64_t n = 64 * 1000;
  const auto all = rehearsed(N, {}, n, [&](Group& group, VirtualClock&, const Tensor& values) {
    CHECK(group.ranks() == N);
    CHECK(std::ssize(group.topology().node_of) == N);
    all_reduce_sum(values, group);
  });
  // Each of 2 (N-1) steps sends one message of n / N numbers, which takes 5 us and 8000 bytes at 10 GB/s.
  for (const VirtualStep& step : all) CHECK(step.step == 2 * (N - 1) * (5'000'000 + 800'000));
}

TEST_CASE("rehearsal: ranks that wait for each other are an error, not a hang")
{
  CHECK_THROWS_WITH(rehearsed(2, {}, 8,
                              [](Group& group, VirtualClock&, const Tensor& values) {
                                if (group.rank() == 1) group.transport().receive(values, 0);
                              }),
                    Contains("rank 1 waits in line"));
}

TEST_CASE("rehearsal: a thread plays one rank at a time, and nothing is left of it")
{
  StepScript script;
  {
    const Rehearsal part({2, 7}, script);
    CHECK(Rehearsal::current() == &part);
    const Communicator seven = Communicator::world();
    CHECK(seven.ranks() == 7);
    CHECK(seven.among({5, 2}).ranks_in_job() == std::vector{5, 2});
    CHECK(seven.among({5, 2}).rank() == 1);
    CHECK(seven.duplicate().ranks_in_job() == seven.ranks_in_job());
    CHECK_THROWS_WITH(seven.split(0, 0), Contains("cannot be rehearsed"));
    CHECK_THROWS_WITH(seven.among({5, 6}), Contains("without itself"));
    CHECK_THROWS_WITH(Rehearsal({0, 1}, script), Contains("two ranks at once"));
  }
  CHECK(Rehearsal::current() == nullptr);
  CHECK(Communicator::world().ranks() == world().ranks());
}

TEST_CASE("communicator: some of its ranks, in an order of their own")
{
  const Communicator all = Communicator::world();
  std::vector<int> backwards(static_cast<std::size_t>(all.ranks()));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  const Communicator same = all.among(backwards);
  CHECK(same.rank() == all.ranks() - 1 - all.rank());
  CHECK(same.ranks_in_job() == backwards);
  CHECK(all.among({all.rank()}).ranks() == 1);
}
