// Collectives between GPUs, over MPI through the host and over NCCL: results, traffic, and kept scratch.

#include <fmt/format.h>

#include "common/collectives/cost.hpp"
#include "common/messages/communication_queue.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/common/cuda/gpu.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// A group of all ranks between their GPUs.
struct GpuGroup : Gpu {
  GpuGroup(Algorithm algorithm, bool nccl, int ranks_per_node = 0)
      : setup{.memory = memory,
              .stream = messages.get(),
              .traffic = &traffic,
              .algorithm = algorithm,
              .ranks_per_node = ranks_per_node,
              .compute = stream.get(),
              .nccl = nccl},
        group("world", Communicator::world(), setup)
  {
  }

  std::unique_ptr<Stream> messages = device->make_stream();
  TrafficLedger traffic;
  GroupSetup setup;
  Group group;
};

/// The transports of these tests: NCCL needs a GPU for each rank.
std::vector<bool> carriers()
{
  return world().ranks() <= gpu_facts().count ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

constexpr Algorithm in_use[] = {Algorithm::ring, Algorithm::tree, Algorithm::halving, Algorithm::library,
                                Algorithm::automatic};

/// This rank's vector.
template <class T>
std::vector<T> own_values(std::int64_t n, int rank)
{
  std::vector<T> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<T>(static_cast<float>(value_at(rank, i))));
  return values;
}

/// Whether elements [range) of a buffer are f(i).
template <class T, class F>
bool holds(GpuGroup& test, const Buffer& buffer, Range range, F&& f)
{
  const std::vector<T> found = to_host<T>(*test.stream, buffer.tensor());
  for (std::int64_t i = range.first; i < range.end(); ++i)
    if (static_cast<int>(static_cast<float>(found[static_cast<std::size_t>(i)])) != f(i)) return false;
  return true;
}

template <class T>
void try_sums(GpuGroup& test, std::int64_t n)
{
  Group& group = test.group;
  const int N = group.ranks(), r = group.rank();
  const auto sum = [&](std::int64_t i) { return sum_at(N, i); };
  INFO(fmt::format("{} elements of {} by {}, NCCL {}", n, name_of(dtype_of<T>()), name_of(group.algorithm()),
                   group.nccl() != nullptr));
  const Buffer scattered = test.filled(own_values<T>(n, r));
  const Range own = reduce_scatter_sum(scattered.tensor(), group);
  REQUIRE(holds<T>(test, scattered, own, sum));
  all_gather(scattered.tensor(), group);
  REQUIRE(holds<T>(test, scattered, {0, n}, sum));

  const Buffer reduced = test.filled(own_values<T>(n, r));
  all_reduce_sum(reduced.tensor(), group);
  REQUIRE(holds<T>(test, reduced, {0, n}, sum));

  const int root = N - 1;
  const Buffer to_root = test.filled(own_values<T>(n, r)), copied = test.filled(own_values<T>(n, r));
  reduce_sum(to_root.tensor(), root, group);
  if (r == root) REQUIRE(holds<T>(test, to_root, {0, n}, sum));
  broadcast(copied.tensor(), root, group);
  REQUIRE(holds<T>(test, copied, {0, n}, [&](std::int64_t i) { return value_at(root, i); }));
}

}  // namespace

TEST_CASE("collectives of GPUs: every algorithm over every transport leaves the right values")
{
  for (const bool nccl : carriers())
    for (const Algorithm algorithm : in_use) {
      GpuGroup test(algorithm, nccl);
      for (const std::int64_t n : {1, 2, 1001, 70001}) {
        try_sums<float>(test, n);
        if (n < 70001) try_sums<bf16>(test, n);
        if (n < 70001) try_sums<std::int64_t>(test, n);
      }
      barrier(test.group);
    }
}

TEST_CASE("collectives of GPUs: two levels")
{
  const int N = world().ranks();
  for (const bool nccl : carriers())
    for (int per_node = 1; per_node < N; ++per_node)
      if (N % per_node == 0) {
        GpuGroup test(Algorithm::hierarchical, nccl, per_node);
        try_sums<float>(test, 1001);
      }
}

TEST_CASE("collectives of GPUs: messages, bytes and scratch are those of the formulas")
{
  for (const bool nccl : carriers())
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::tree, Algorithm::halving, Algorithm::library})
      for (const std::int64_t n : {1L, 1001L, 300001L}) {
        GpuGroup test(algorithm, nccl);
        const Buffer values = test.filled(own_values<float>(n, world().rank()));
        all_reduce_sum(values.tensor(), test.group);
        const CollectiveShape shape{"all-reduce", algorithm, DType::f32, n};
        const Traffic expected = expected_traffic(shape, test.group.topology(), world().rank());
        INFO(fmt::format("{} by {}, NCCL {}", n, name_of(algorithm), nccl));
        CHECK(test.traffic.total().messages == expected.messages);
        CHECK(test.traffic.total().bytes == expected.bytes);
        CHECK(test.ledger.current(Tier::device)[Category::communication] ==
              scratch_bytes({shape}, test.group.topology(), world().rank()));
      }
}

TEST_CASE("collectives of GPUs: all-to-all of equal and of other blocks")
{
  for (const bool nccl : carriers())
    for (const Algorithm algorithm : {Algorithm::pairwise, Algorithm::bruck, Algorithm::library}) {
      GpuGroup test(algorithm, nccl);
      const int N = test.group.ranks(), r = test.group.rank();
      const std::int64_t n = 1001;
      INFO(fmt::format("{}, NCCL {}", name_of(algorithm), nccl));
      const Buffer sent = test.filled(own_values<float>(N * n, r)),
                   received = test.filled(own_values<float>(N * n, r));
      all_to_all(sent.tensor(), received.tensor(), test.group);
      REQUIRE(holds<float>(test, received, {0, N * n},
                           [&](std::int64_t i) { return value_at(static_cast<int>(i / n), r * n + i % n); }));
      const CollectiveShape shape{"all-to-all", algorithm, DType::f32, N * n};
      CHECK(test.traffic.total() == expected_traffic(shape, test.group.topology(), r));
      CHECK(test.ledger.current(Tier::device)[Category::communication] ==
            scratch_bytes({shape}, test.group.topology(), r));

      // Rank q sends r elements to rank r: block r begins after 0 + 1 + .. + r-1.
      std::vector<std::int64_t> out, in(static_cast<std::size_t>(N), r);
      for (int q = 0; q < N; ++q) out.push_back(q);
      const Tensor some = sent.tensor().slice({0, N * (N - 1) / 2}), arrived = received.tensor().slice({0, N * r});
      all_to_all_v(some, out, arrived, in, test.group);
      REQUIRE(holds<float>(test, received, {0, N * r}, [&](std::int64_t i) {
        return value_at(static_cast<int>(i / r), r * (r - 1) / 2 + i % r);
      }));
    }
}

TEST_CASE("collectives of GPUs: numbers and texts of the host take part")
{
  for (const bool nccl : carriers()) {
    GpuGroup test(Algorithm::ring, nccl);
    const int N = test.group.ranks(), r = test.group.rank();
    std::int64_t number = r + 1;
    all_reduce_sum(number, test.group);
    CHECK(number == N * (N + 1) / 2);
    ExactScalar sum;
    sum.add(0.25 * r);
    all_reduce_sum(sum, test.group);
    CHECK(sum.value() == 0.125 * N * (N - 1));
    std::string text = r == 0 ? "root" : "else";
    broadcast(text, 0, test.group);
    CHECK(text == "root");
    const std::vector<std::int64_t> all = all_gather(10 * r, test.group);
    for (int q = 0; q < N; ++q) CHECK(all[static_cast<std::size_t>(q)] == 10 * q);
    CHECK(all_to_all(all, test.group) == std::vector<std::int64_t>(static_cast<std::size_t>(N), 10 * r));
    CHECK(test.ledger.current(Tier::device)[Category::communication] >= host_values_bytes(DeviceKind::cuda, N));
  }
}

TEST_CASE("CollectiveScope: a collective reads results of earlier work, and later work sees its result")
{
  for (const bool nccl : carriers())
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::library}) {
      GpuGroup test(algorithm, nccl);
      const int N = test.group.ranks();
      const std::vector<std::int64_t> ones(5000, 1);
      const Buffer sum = test.filled(std::vector<std::int64_t>(5000)), one = test.filled(ones);
      std::int64_t expected = 0;
      for (int turn = 0; turn < 4; ++turn) {
        test.stream->add(sum.tensor(), one.tensor());
        all_reduce_sum(sum.tensor(), test.group);
        test.stream->add(sum.tensor(), one.tensor());
        expected = (expected + 1) * N + 1;
      }
      CHECK(to_host<std::int64_t>(*test.stream, sum.tensor()) == std::vector<std::int64_t>(5000, expected));
    }
}

TEST_CASE("CommunicationQueue: collectives of GPUs beside the computation")
{
  for (const bool nccl : carriers()) {
    GpuGroup test(Algorithm::ring, nccl);
    TimeLedger time;
    const int N = test.group.ranks();
    const Buffer a = test.filled(std::vector<std::int64_t>(5000)), b = test.filled(std::vector<std::int64_t>(5000)),
                 one = test.filled(std::vector<std::int64_t>(5000, 1));
    CommunicationQueue queue(test.group, time);
    std::int64_t expected = 0;
    for (int turn = 0; turn < 5; ++turn) {
      test.stream->add(a.tensor(), one.tensor());
      Pending first = queue.start("first", [&](Group& group) { all_reduce_sum(a.tensor(), group); });
      test.stream->add(b.tensor(), one.tensor());
      Pending second = queue.start("second", [&](Group& group) { all_reduce_sum(b.tensor(), group); });
      first.wait();
      test.stream->add(a.tensor(), one.tensor());
      second.wait();
      test.stream->add(b.tensor(), one.tensor());
      expected = (expected + 1) * N + 1;
    }
    CHECK(to_host<std::int64_t>(*test.stream, a.tensor()) == std::vector<std::int64_t>(5000, expected));
    CHECK(to_host<std::int64_t>(*test.stream, b.tensor()) == std::vector<std::int64_t>(5000, expected));
  }
}

TEST_CASE("CommunicationQueue: wait() includes the last work of the message stream")
{
  for (const bool nccl : carriers()) {
    GpuGroup test(Algorithm::ring, nccl);
    TimeLedger time;
    const int N = test.group.ranks();
    const Buffer sum = test.filled(std::vector<std::int64_t>(5000, 1)),
                 one = test.filled(std::vector<std::int64_t>(5000, 1));
    CommunicationQueue queue(test.group, time);
    Pending scattered =
        queue.start("a shard", [&](Group& group) { reduce_scatter_sum(sum.tensor(), group); });  // ends with a sum
    scattered.wait();
    test.stream->add(sum.tensor(), one.tensor());
    const Range own = Partition(5000, N).shard(test.group.rank());
    CHECK(holds<std::int64_t>(test, sum, own, [&](std::int64_t) { return N + 1; }));
  }
}
