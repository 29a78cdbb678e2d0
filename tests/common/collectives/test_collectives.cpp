// Every collective with every algorithm: its result, its traffic, and the scratch that it keeps.

#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "common/base/tree_sum.hpp"
#include "common/collectives/cost.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

constexpr std::int64_t counts[] = {0, 1, 2, 1001, 65537};

/// The algorithms that can be used on this many ranks, each with the ranks per node that it is tried with.
std::vector<std::pair<Algorithm, int>> algorithms_here()
{
  std::vector<std::pair<Algorithm, int>> here;
  for (const auto& [name, algorithm] : algorithms()) here.emplace_back(algorithm, 0);
  for (int per_node = 1; per_node < world().ranks(); ++per_node) {
    if (world().ranks() % per_node == 0) here.emplace_back(Algorithm::hierarchical, per_node);
    here.emplace_back(Algorithm::automatic, per_node);
  }
  return here;
}

/// Whether the elements of a range are as expected, and those around the vector untouched.
template <class Expected>
bool same(auto& values, Range range, Expected&& expected)
{
  for (std::int64_t i = range.first; i < range.end(); ++i)
    if (values.at(i) != expected(i)) return false;
  return values.intact();
}

/// All collectives on vectors of n elements of type T.
template <class T>
void try_sums(Group& group, std::int64_t n)
{
  const int N = group.ranks(), r = group.rank();
  const auto sum = [&](std::int64_t i) { return sum_at(N, i); };
  INFO(fmt::format("{} elements of {} by {}", n, name_of(dtype_of<T>()), name_of(group.algorithm())));

  Guarded<T> scattered(n, r);
  const Range own = reduce_scatter_sum(scattered.tensor(), group);
  REQUIRE(own == Partition(n, N).shard(r));
  REQUIRE(same(scattered, own, sum));
  for (std::int64_t i = 0; i < n; ++i)
    if (!own.contains(i)) scattered[i] = T{};
  all_gather(scattered.tensor(), group);
  REQUIRE(same(scattered, {0, n}, sum));

  Guarded<T> reduced(n, r);
  all_reduce_sum(reduced.tensor(), group);
  REQUIRE(same(reduced, {0, n}, sum));

  for (int root = 0; root < N; ++root) {
    Guarded<T> to_root(n, r);
    reduce_sum(to_root.tensor(), root, group);
    if (r == root) REQUIRE(same(to_root, {0, n}, sum));
    REQUIRE(to_root.intact());
  }
}

template <class T>
void try_copies(Group& group, std::int64_t n)
{
  const int N = group.ranks(), r = group.rank();
  INFO(fmt::format("{} elements of {} by {}", n, name_of(dtype_of<T>()), name_of(group.algorithm())));
  for (int root = 0; root < N; ++root) {
    Guarded<T> copied(n, r);
    broadcast(copied.tensor(), root, group);
    REQUIRE(same(copied, {0, n}, [&](std::int64_t i) { return value_at(root, i); }));
  }
  Guarded<T> gathered(n, r);
  all_gather(gathered.tensor(), group);
  REQUIRE(same(gathered, {0, n},
               [&](std::int64_t i) { return value_at(static_cast<int>(Partition(n, N).owner(i)), i); }));
}

void call(std::string_view collective, const Tensor& values, int root, Group& group)
{
  if (collective == "reduce-scatter") reduce_scatter_sum(values, group);
  if (collective == "all-gather") all_gather(values, group);
  if (collective == "all-reduce") all_reduce_sum(values, group);
  if (collective == "broadcast") broadcast(values, root, group);
  if (collective == "reduce") reduce_sum(values, root, group);
  if (collective == "barrier") barrier(group);
}

}  // namespace

TEST_CASE("collectives: every algorithm leaves the right values, for any count, type and root")
{
  for (const auto& [algorithm, per_node] : algorithms_here()) {
    if (algorithm == Algorithm::automatic && per_node > 0 && world().ranks() % per_node != 0) continue;
    GroupForTest test(algorithm, per_node);
    INFO(fmt::format("{} ranks a node", per_node));
    for (const std::int64_t n : counts) {
      try_sums<float>(test.group, n);
      try_sums<bf16>(test.group, n);
      try_sums<double>(test.group, n);
      try_sums<std::int32_t>(test.group, n);
      try_sums<std::int64_t>(test.group, n);
      try_copies<std::uint8_t>(test.group, n);
      try_copies<float>(test.group, n);
    }
    barrier(test.group);
  }
}

TEST_CASE("expected_traffic: sent bytes and kept scratch equal the formulas")
{
  for (const auto& [algorithm, per_node] : algorithms_here()) {
    if (algorithm == Algorithm::automatic) continue;
    for (const char* collective :
         {"reduce-scatter", "all-gather", "all-reduce", "broadcast", "reduce", "barrier"}) {
      for (const std::int64_t n : {0L, 1L, 2L, 5L, 1001L, 5001L, 300001L}) {
        const int root = static_cast<int>(n % world().ranks());
        GroupForTest test(algorithm, per_node);
        Guarded<float> values(n, world().rank());
        call(collective, values.tensor(), root, test.group);
        const CollectiveShape shape{collective, algorithm, DType::f32, std::string(collective) == "barrier" ? 0 : n,
                                    root};
        const Traffic expected = expected_traffic(shape, test.group.topology(), world().rank());
        const Traffic measured = test.traffic.total();
        INFO(fmt::format("{} of {} by {}, {} ranks a node", collective, n, name_of(algorithm), per_node));
        CHECK(measured.messages == expected.messages);
        CHECK(measured.bytes == expected.bytes);
        CHECK(measured.read_bytes == expected.read_bytes);
        const std::int64_t scratch = scratch_bytes({shape}, test.group.topology(), world().rank());
        CHECK(test.ledger.current(Tier::device)[Category::communication] == scratch);

        GroupForTest reserved(algorithm, per_node);
        reserve_scratch(shape, reserved.group);
        CHECK(reserved.ledger.current(Tier::device)[Category::communication] == scratch);
        call(collective, values.tensor(), root, reserved.group);
        CHECK(reserved.ledger.current(Tier::device)[Category::communication] == scratch);
      }
    }
  }
}

TEST_CASE("expected_traffic: a ring's all-reduce sends 2 (N-1)/N of the bytes a rank, and so does halving")
{
  const int N = world().ranks();
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::halving}) {
    if (algorithm == Algorithm::halving && (N & (N - 1)) != 0) continue;
    GroupForTest test(algorithm);
    const std::int64_t n = 840 * 64;
    Guarded<float> values(n, world().rank());
    all_reduce_sum(values.tensor(), test.group);
    REQUIRE(test.traffic.of("world").bytes == 4 * 2 * n * (N - 1) / N);
  }
}

TEST_CASE("collectives: sums of real numbers have the same bits on all ranks, and halving adds as tree_sum() does")
{
  const int N = world().ranks(), r = world().rank();
  const std::int64_t n = 5003;
  const auto value = [](int rank, std::int64_t i) {
    return 1.0f / static_cast<float>(1 + (i * 37 + rank * 101) % 1009) - 0.003f * static_cast<float>(rank);
  };
  for (const auto& [algorithm, per_node] : algorithms_here()) {
    if (algorithm == Algorithm::automatic) continue;
    GroupForTest test(algorithm, per_node);
    std::vector<float> sums(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) sums[static_cast<std::size_t>(i)] = value(r, i);
    all_reduce_sum(Tensor(std::span(sums), {n}), test.group);

    std::vector<float> first = sums;
    broadcast(Tensor(std::span(first), {n}), 0, test.group);
    INFO(name_of(algorithm));
    REQUIRE(sums == first);
    const bool tree = algorithm == Algorithm::halving || algorithm == Algorithm::shared;
    if (!tree || (N & (N - 1)) != 0) continue;
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < n; ++i)
      different += sums[static_cast<std::size_t>(i)] !=
                   tree_sum(0, N, [&](std::int64_t q) { return value(static_cast<int>(q), i); });
    REQUIRE(different == 0);
  }
}

TEST_CASE("all_reduce_sum: halving and the whole sums of small messages have the same bits")
{
  const int N = world().ranks(), r = world().rank();
  if ((N & (N - 1)) != 0) return;
  GroupForTest test(Algorithm::halving);
  const std::int64_t n = 501;
  std::vector<float> whole, halves;
  for (std::int64_t i = 0; i < n; ++i) whole.push_back(1.0f / static_cast<float>(3 + i * (r + 1)));
  halves = whole;
  all_reduce_sum(Tensor(std::span(whole), {n}), test.group);
  reduce_scatter_sum(Tensor(std::span(halves), {n}), test.group);
  all_gather(Tensor(std::span(halves), {n}), test.group);
  REQUIRE(whole == halves);
}

TEST_CASE("all_reduce_sum: exact scalars and counts")
{
  GroupForTest test(Algorithm::ring);
  ExactScalar sum;
  sum.add(0.1 * (world().rank() + 1));
  std::int64_t count = world().rank() + 1;
  all_reduce_sum(sum, test.group);
  all_reduce_sum(count, test.group);
  ExactScalar expected;
  for (int r = 0; r < world().ranks(); ++r) expected.add(0.1 * (r + 1));
  REQUIRE(sum.value() == expected.value());
  REQUIRE(count == world().ranks() * (world().ranks() + 1) / 2);
}

TEST_CASE("collectives: bytes are not added up, and a root has to be a rank")
{
  GroupForTest test(Algorithm::ring);
  std::vector<std::uint8_t> bytes(8);
  const Tensor values(std::span<std::uint8_t>(bytes), {8});
  REQUIRE_THROWS_WITH(all_reduce_sum(values, test.group), Contains("can only be sent"));
  REQUIRE_THROWS_WITH(broadcast(values, world().ranks(), test.group), Contains("cannot be the root"));
  REQUIRE_THROWS_WITH(broadcast(values, -1, test.group), Contains("cannot be the root"));
}

TEST_CASE("barrier: no rank leaves before the last one has arrived")
{
  const auto now = [] {
    return std::chrono::steady_clock::now().time_since_epoch().count();
  };  // one clock a machine
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::shared, Algorithm::library}) {
    GroupForTest test(algorithm);
    for (int late = 0; late < world().ranks(); ++late) {
      if (world().rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::int64_t came = now();
      barrier(test.group);
      const std::int64_t left = now();
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, &came, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD), "finding the last");
      REQUIRE(left >= came);
    }
  }
}

TEST_CASE("scratch_bytes: after several calls the group and both of its levels keep their largest")
{
  GroupForTest test(Algorithm::automatic, 2);
  std::vector<CollectiveShape> calls;
  for (const std::int64_t n : {100001L, 1001L, 200001L, 10L}) {  // by both levels, or by the group itself
    Guarded<float> values(n, world().rank());
    call("all-reduce", values.tensor(), 0, test.group);
    calls.push_back({"all-reduce", Algorithm::automatic, DType::f32, n});
    CHECK(test.ledger.current(Tier::device)[Category::communication] ==
          scratch_bytes(calls, test.group.topology(), world().rank()));
  }
}
