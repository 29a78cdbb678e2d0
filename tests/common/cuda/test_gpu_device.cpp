// A GPU as a Device: memory, copies, sums, and the order of streams.

#include "tests/catch.hpp"
#include "tests/common/cuda/gpu.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Numbers that every type holds without rounding, other ones for another @p series.
template <class T>
std::vector<T> numbers(std::int64_t n, int series)
{
  std::vector<T> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<T>(static_cast<float>((i * 7 + series) % 61)));
  return values;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b)
{
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](T x, T y) { return static_cast<float>(x) == static_cast<float>(y); });
}

}  // namespace

TEST_CASE("Stream of a GPU: zero() and copy() reach all elements, and no others")
{
  Gpu gpu;
  for (const std::int64_t n : {1, 3, 255, 256, 257, 70001}) {
    const std::vector<float> ones(static_cast<std::size_t>(n + 2), 1);
    const Buffer a = gpu.filled(ones), b = gpu.filled(numbers<float>(n, 5));
    const Tensor inside = a.tensor().slice({1, n});
    gpu.stream->copy(inside, b.tensor());
    std::vector<float> expected = numbers<float>(n, 5);
    expected.insert(expected.begin(), 1);
    expected.push_back(1);
    CHECK(to_host<float>(*gpu.stream, a.tensor()) == expected);
    gpu.stream->zero(inside);
    std::fill(expected.begin() + 1, expected.end() - 1, 0.0f);
    CHECK(to_host<float>(*gpu.stream, a.tensor()) == expected);
  }
  CHECK_THROWS_WITH(
      gpu.stream->copy(gpu.filled(numbers<float>(2, 1)).tensor(), gpu.filled(numbers<float>(3, 1)).tensor()),
      Contains("different type or size"));
}

TEMPLATE_TEST_CASE("Stream of a GPU: add() adds in every type", "", float, double, bf16, std::int32_t, std::int64_t)
{
  Gpu gpu;
  for (const std::int64_t n : {1, 31, 1000, 1'100'003}) {  // the last takes some threads of the grid two turns
    const Buffer a = gpu.filled(numbers<TestType>(n, 3)), b = gpu.filled(numbers<TestType>(n, 11));
    gpu.stream->add(a.tensor(), b.tensor());
    std::vector<TestType> expected = numbers<TestType>(n, 3);
    const std::vector<TestType> others = numbers<TestType>(n, 11);
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = static_cast<TestType>(static_cast<float>(expected[i]) + static_cast<float>(others[i]));
    CHECK(same(to_host<TestType>(*gpu.stream, a.tensor()), expected));
  }
}

TEST_CASE("Stream of a GPU: add() refuses bytes and vectors of different length")
{
  Gpu gpu;
  const Buffer bytes = gpu.filled(std::vector<std::uint8_t>(8)), three = gpu.filled(numbers<float>(3, 0)),
               four = gpu.filled(numbers<float>(4, 0));
  CHECK_THROWS_AS(gpu.stream->add(bytes.tensor(), bytes.tensor()), Error);
  CHECK_THROWS_AS(gpu.stream->add(three.tensor(), four.tensor()), Error);
}

TEST_CASE("Stream::wait: the results of another stream are visible, however the streams are scheduled")
{
  Gpu gpu;
  const std::unique_ptr<Stream> other = gpu.device->make_stream();
  constexpr std::int64_t n = 1000;
  for (int round = 0; round < 20; ++round) {
    const Buffer sum = gpu.filled(std::vector<std::int64_t>(n)), one = gpu.filled(std::vector<std::int64_t>(n, 1));
    for (int turn = 0; turn < 5; ++turn) {
      gpu.stream->add(sum.tensor(), one.tensor());
      other->wait(gpu.stream->record());
      other->add(sum.tensor(), sum.tensor());
      gpu.stream->wait(other->record());
    }
    CHECK(to_host<std::int64_t>(*gpu.stream, sum.tensor()) == std::vector<std::int64_t>(n, 62));
  }
}

TEST_CASE("host_memory: the GPU copies to and from it, and the host reads it after synchronise()")
{
  Gpu gpu;
  const DeviceMemory host{&gpu.device->host_memory(), &gpu.ledger, Tier::host};
  const Buffer pinned(host, Category::staging, DType::i32, {500}, "pinned");
  CHECK(gpu.ledger.current(Tier::host)[Category::staging] == 2000);
  const Buffer there = gpu.filled(numbers<std::int32_t>(500, 9));
  gpu.stream->copy(pinned.tensor(), there.tensor());
  gpu.stream->synchronise();
  const std::span<std::int32_t> read = pinned.tensor().span<std::int32_t>();
  CHECK(std::vector<std::int32_t>(read.begin(), read.end()) == numbers<std::int32_t>(500, 9));
}

TEST_CASE("Device: an allocation that does not fit reports the free bytes, and smaller ones still succeed")
{
  Gpu gpu;
  const GpuFacts facts = gpu_facts();
  CHECK(facts.free_bytes <= facts.memory_bytes);
  CHECK_THROWS_WITH(gpu.device->allocate(std::int64_t{1} << 50),
                    Contains("out of device memory: GPU 0 cannot provide 1,125,899,906,842,624 bytes"));
  CHECK(to_host<float>(*gpu.stream, gpu.filled(numbers<float>(10, 1)).tensor()) == numbers<float>(10, 1));
}
