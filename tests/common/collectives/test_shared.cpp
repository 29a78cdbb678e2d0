// Collectives in shared memory: their results wherever the values are stored, the bytes that they read, and that
// consecutive calls do not disturb each other.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "common/base/tree_sum.hpp"
#include "common/collectives/shared.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

/// Where the values of a call are stored.
enum class Place {
  shared,    // in the same buffer of the shared memory on all ranks
  ordinary,  // in no rank's shared memory
  mixed,     // in that of rank 0 only
  shifted,   // in that of all ranks, but at another place at rank 0
};
constexpr Place places[] = {Place::shared, Place::ordinary, Place::mixed, Place::shifted};

// 4,096 and 4,097 elements of four bytes are at the limit of what is summed whole.
constexpr std::int64_t counts[] = {0, 1, 2, 1001, 4096, 4097, 65537};

/// Element i on a rank in a call: whole numbers from 0 to 12 that do not repeat with i.
int number(int rank, std::int64_t i, int call = 0)
{
  auto mixed = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u +
               static_cast<std::uint64_t>(rank * 1000 + call) * 0xC2B2AE3D27D4EB4Fu;
  mixed ^= mixed >> 29;
  mixed *= 0xBF58476D1CE4E5B9u;
  return static_cast<int>((mixed >> 40) % 13);
}

int sum_of_numbers(int ranks, std::int64_t i, int call = 0)
{
  int sum = 0;
  for (int r = 0; r < ranks; ++r) sum += number(r, i, call);
  return sum;
}

/// n elements of a rank, with a guard element before and after them that no call may change. All ranks construct it
/// together.
template <class T>
class Vector {
 public:
  Vector(std::int64_t n, Place place, GroupForTest& test) : n_(n)
  {
    const bool first = test.group.rank() == 0;
    const bool shares = place == Place::shared || place == Place::shifted || (place == Place::mixed && first);
    in_window_ = Buffer(test.group.often_reduced(), Category::gradients, dtype_of<T>(), {n + 3}, "values");
    elsewhere_.resize(static_cast<std::size_t>(n + 3));
    elements_ = shares ? in_window_.tensor().template data<T>() : elsewhere_.data();
    elements_ += place == Place::shifted && first ? 2 : 1;
    rank_ = test.group.rank();
    fill(0);
  }

  void fill(int call)
  {
    elements_[-1] = elements_[n_] = make(guard);
    for (std::int64_t i = 0; i < n_; ++i) elements_[i] = make(number(rank_, i, call));
  }
  /// Overwrites all elements outside of a range at once, as a caller that reuses the memory does. It begins at the end,
  /// where other ranks may still be reading.
  void overwrite_all_but(Range range)
  {
    for (std::int64_t i = n_ - 1; i >= 0; --i)
      if (!range.contains(i)) elements_[i] = make(guard);
  }
  Tensor tensor() const { return Tensor(elements_, dtype_of<T>(), {n_}); }

  /// Whether the elements of a range are as expected, and those around the vector untouched.
  template <class Expected>
  bool holds(Range range, Expected&& expected) const
  {
    for (std::int64_t i = range.first; i < range.end(); ++i)
      if (value(elements_[i]) != expected(i)) return false;
    return value(elements_[-1]) == guard && value(elements_[n_]) == guard;
  }

 private:
  static constexpr int guard = 99;
  static T make(int number) { return static_cast<T>(static_cast<float>(number)); }
  static int value(T element) { return static_cast<int>(static_cast<float>(element)); }

  std::int64_t n_;
  int rank_ = 0;
  Buffer in_window_;
  std::vector<T> elsewhere_;
  T* elements_;
};

/// Bytes read since the last call.
std::int64_t take_read_bytes(GroupForTest& test, const char* collective)
{
  const Traffic traffic = test.traffic.of("world", collective);
  REQUIRE(traffic == test.traffic.total());
  REQUIRE(traffic.messages + traffic.bytes == 0);
  test.traffic.clear();
  return traffic.read_bytes;
}

template <class T>
void try_sums(GroupForTest& test, std::int64_t n, Place place)
{
  Group& group = test.group;
  const int N = group.ranks(), r = group.rank();
  const Range own = Partition(n, N).shard(r);
  const std::int64_t size = sizeof(T), to_sum = (N - 1) * own.count * size, to_gather = (n - own.count) * size;
  const auto sum = [&](std::int64_t i) { return sum_of_numbers(N, i); };
  INFO(fmt::format("{} elements of {}, place {}", n, name_of(dtype_of<T>()), static_cast<int>(place)));

  Vector<T> values(n, place, test);
  shared_reduce_scatter_sum(values.tensor(), group);
  REQUIRE(values.holds(own, sum));
  REQUIRE(take_read_bytes(test, "reduce-scatter") == to_sum);

  shared_all_gather(values.tensor(), group);
  REQUIRE(values.holds({0, n}, sum));
  REQUIRE(take_read_bytes(test, "all-gather") == to_gather);

  values.fill(0);
  shared_all_reduce_sum(values.tensor(), group);
  REQUIRE(values.holds({0, n}, sum));
  const bool whole = n * size <= shared_whole_bytes;
  REQUIRE(take_read_bytes(test, "all-reduce") == (whole ? (N - 1) * n * size : to_sum + to_gather));

  for (int root = 0; root < N; ++root) {
    values.fill(0);
    shared_reduce_sum(values.tensor(), root, group);
    if (r == root) REQUIRE(values.holds({0, n}, sum));
    REQUIRE(values.holds({0, 0}, sum));
    REQUIRE(take_read_bytes(test, "reduce") == to_sum + (r == root ? to_gather : 0));
  }
}

template <class T>
void try_copies(GroupForTest& test, std::int64_t n, Place place)
{
  Group& group = test.group;
  const int N = group.ranks(), r = group.rank();
  INFO(fmt::format("{} elements of {}, place {}", n, name_of(dtype_of<T>()), static_cast<int>(place)));
  Vector<T> values(n, place, test);
  for (int root = 0; root < N; ++root) {
    values.fill(0);
    shared_broadcast(values.tensor(), root, group);
    REQUIRE(values.holds({0, n}, [&](std::int64_t i) { return number(root, i); }));
    const std::int64_t size = sizeof(T);
    REQUIRE(take_read_bytes(test, "broadcast") == (r == root ? 0 : n * size));
  }
  values.fill(0);
  shared_all_gather(values.tensor(), group);
  const Partition shards(n, N);
  REQUIRE(values.holds({0, n}, [&](std::int64_t i) { return number(static_cast<int>(shards.owner(i)), i); }));
  REQUIRE(take_read_bytes(test, "all-gather") == (n - shards.shard(r).count) * static_cast<int>(sizeof(T)));
}

}  // namespace

TEST_CASE("shared collectives: sums are right for any count, type and root, wherever the values are stored")
{
  GroupForTest test(Algorithm::shared);
  for (const Place place : places) {
    for (const std::int64_t n : counts) {
      try_sums<float>(test, n, place);
      try_sums<bf16>(test, n, place);
      try_sums<double>(test, n, place);
      try_sums<std::int32_t>(test, n, place);
      try_sums<std::int64_t>(test, n, place);
    }
    try_sums<float>(test, 300'001, place);  // several areas, for any number of ranks
  }
}

TEST_CASE("shared collectives: copies are right for any count, type and root, wherever the values are stored")
{
  GroupForTest test(Algorithm::shared);
  for (const Place place : places) {
    for (const std::int64_t n : counts) {
      try_copies<std::uint8_t>(test, n, place);
      try_copies<float>(test, n, place);
      try_copies<double>(test, n, place);
    }
    try_copies<float>(test, 300'001, place);
  }
}

TEST_CASE("shared collectives: bytes cannot be added up")
{
  GroupForTest test(Algorithm::shared);
  std::vector<std::uint8_t> bytes(100);
  const Tensor values(bytes.data(), DType::u8, {100});
  CHECK_THROWS_AS(shared_reduce_scatter_sum(values, test.group), Error);
  CHECK_THROWS_AS(shared_all_reduce_sum(values, test.group), Error);
  CHECK_THROWS_AS(shared_reduce_sum(values, 0, test.group), Error);
}

TEST_CASE("shared collectives: a sum has the bits of tree_sum(), on all ranks and wherever the values are stored")
{
  GroupForTest test(Algorithm::shared);
  const int N = test.group.ranks(), r = test.group.rank();
  const auto real = [](std::int64_t rank, std::int64_t i) {
    return 1.0f / static_cast<float>(1 + (i * 37 + rank * 101) % 1009) - 0.003f * static_cast<float>(rank);
  };
  for (const Place place : places) {
    for (const std::int64_t n : {1001, 50'003}) {
      const Vector<float> values(n, place, test);
      float* element = values.tensor().data<float>();
      for (std::int64_t i = 0; i < n; ++i) element[i] = real(r, i);
      shared_all_reduce_sum(values.tensor(), test.group);
      std::int64_t different = 0;
      for (std::int64_t i = 0; i < n; ++i)
        different += element[i] != tree_sum(0, N, [&](std::int64_t q) { return real(q, i); });
      INFO(fmt::format("{} elements, place {}", n, static_cast<int>(place)));
      REQUIRE(different == 0);
    }
  }
}

TEST_CASE("shared collectives: calls in a row, of values that are overwritten at once, do not disturb each other")
{
  GroupForTest test(Algorithm::shared);
  Group& group = test.group;
  const int N = group.ranks(), r = group.rank();
  constexpr int calls = 60;
  for (const Place place : places) {
    for (const std::int64_t n : {1001, 20'011}) {
      Vector<float> values(n, place, test);
      for (int call = 0; call < calls; ++call) {
        // Each rank is the last to come, and then the last to leave, now and then.
        const auto dawdle = [&] {
          if (call % 7 == r) std::this_thread::sleep_for(std::chrono::microseconds(300));
        };
        const auto sum = [&](std::int64_t i) { return sum_of_numbers(N, i, call); };
        const int root = call % N;
        INFO(fmt::format("call {} of {} elements, place {}", call, n, static_cast<int>(place)));

        values.fill(call);
        dawdle();
        shared_all_reduce_sum(values.tensor(), group);
        REQUIRE(values.holds({0, n}, sum));
        values.fill(call);
        shared_reduce_scatter_sum(values.tensor(), group);
        const Range own = Partition(n, N).shard(r);
        values.overwrite_all_but(own);
        REQUIRE(values.holds(own, sum));
        shared_all_gather(values.tensor(), group);
        values.overwrite_all_but({});
        values.fill(call);
        shared_reduce_sum(values.tensor(), root, group);
        if (r == root) REQUIRE(values.holds({0, n}, sum));
        values.fill(call);
        shared_broadcast(values.tensor(), root, group);
        if (r == root)
          values.overwrite_all_but({});
        else
          REQUIRE(values.holds({0, n}, [&](std::int64_t i) { return number(root, i, call); }));
        values.fill(call);
        shared_all_gather(values.tensor(), group);
        const Partition shards(n, N);
        REQUIRE(values.holds({0, n},
                             [&](std::int64_t i) { return number(static_cast<int>(shards.owner(i)), i, call); }));
      }
    }
  }
}
