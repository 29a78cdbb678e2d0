#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/memory/device.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// A device without memory that counts what it is asked for.
class CountingDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "counting"; }
  void* allocate(std::int64_t bytes) override
  {
    if (fails) throw Error("no memory");
    allocated += bytes;
    return std::malloc(static_cast<std::size_t>(bytes) + 1);
  }
  void release(void* memory, std::int64_t bytes) noexcept override
  {
    released += bytes;
    std::free(memory);
  }
  std::unique_ptr<Stream> make_stream() override { return nullptr; }
  Device& host_memory() override { return *this; }

  bool fails = false;
  std::int64_t allocated = 0, released = 0;
};

}  // namespace

TEST_CASE("rehearsed device: memory without end that reads as zeros, and streams that move whole numbers only")
{
  const std::unique_ptr<Device> device = make_rehearsed_device(DeviceKind::cuda);
  CHECK(device->kind() == DeviceKind::cuda);
  MemoryLedger ledger;
  const DeviceMemory memory{device.get(), &ledger};
  const Buffer huge(memory, Category::parameters, DType::f32, {std::int64_t{1} << 40}, "parameters");
  CHECK(ledger.current(Tier::device).total() == std::int64_t{4} << 40);
  CHECK(huge.tensor().data<float>()[(std::int64_t{1} << 40) - 1] == 0);
  const std::unique_ptr<Stream> stream = device->make_stream();
  std::vector<std::int32_t> choices{1, 2, 3};
  const Buffer kept(memory, Category::parameters, DType::i32, {3}, "choices");
  stream->copy(kept.tensor(), Tensor(std::span(choices), {3}));
  CHECK(to_host<std::int32_t>(*stream, kept.tensor()) == choices);
  std::vector<float> weights{1, 2, 3};
  stream->copy(huge.tensor().slice({0, 3}), Tensor(std::span(weights), {3}));
  CHECK(to_host<float>(*stream, huge.tensor().slice({0, 3})) == std::vector<float>(3));
}

TEST_CASE("Buffer: is counted from construction to destruction, as its category and in its tier")
{
  const auto device = make_cpu_device();
  MemoryLedger ledger;
  {
    const Buffer weights({device.get(), &ledger}, Category::parameters, DType::f32, {10, 3}, "weights");
    const Buffer saved({device.get(), &ledger, Tier::host}, Category::activations, DType::bf16, {7}, "saved");
    CHECK(weights.tensor().shape() == Shape{10, 3});
    CHECK(weights.tensor().type() == DType::f32);
    CHECK(weights.tensor().bytes() == 120);
    CHECK(ledger.current(Tier::device)[Category::parameters] == 120);
    CHECK(ledger.current(Tier::device).total() == 120);
    CHECK(ledger.current(Tier::host)[Category::activations] == 14);
    CHECK(ledger.current(Tier::host).total() == 14);
  }
  CHECK(ledger.current(Tier::device).total() == 0);
  CHECK(ledger.current(Tier::host).total() == 0);
  CHECK(ledger.peak(Tier::device)[Category::parameters] == 120);
}

TEST_CASE("Buffer: moved memory is counted once and freed once")
{
  CountingDevice device;
  MemoryLedger ledger;
  const DeviceMemory memory{&device, &ledger};
  const auto alive = [&] { return ledger.current(Tier::device).total(); };
  {
    Buffer first(memory, Category::gradients, DType::f32, {4}, "first");
    void* const at = first.tensor().raw();
    Buffer second(std::move(first));
    CHECK(second.tensor().raw() == at);
    CHECK(first.tensor().empty());
    CHECK(alive() == 16);

    Buffer third(memory, Category::optimizer, DType::f64, {4}, "third");
    CHECK(alive() == 48);
    third = std::move(second);  // what third held is given back at once
    CHECK(third.tensor().raw() == at);
    CHECK(second.tensor().empty());
    CHECK(alive() == 16);
    CHECK(ledger.current(Tier::device)[Category::optimizer] == 0);
    CHECK(device.released == 32);

    Buffer& same = third;
    third = std::move(same);
    CHECK(third.tensor().raw() == at);
    CHECK(alive() == 16);

    third = Buffer();
    CHECK(third.tensor().empty());
    CHECK(alive() == 0);
  }
  CHECK(device.allocated == 48);
  CHECK(device.released == 48);
  CHECK(ledger.peak_total(Tier::device) == 48);
}

TEST_CASE("Buffer: all buffers of a vector are freed")
{
  CountingDevice device;
  MemoryLedger ledger;
  {
    std::vector<Buffer> buffers;
    for (std::int64_t i = 0; i < 20; ++i)
      buffers.emplace_back(DeviceMemory{&device, &ledger}, Category::workspace, DType::f32, Shape{i},
                           "one of many");
    CHECK(ledger.current(Tier::device)[Category::workspace] == 760);
    buffers.erase(buffers.begin() + 5, buffers.begin() + 15);
    CHECK(ledger.current(Tier::device)[Category::workspace] == 380);
  }
  CHECK(device.allocated == 760);
  CHECK(device.released == 760);
  CHECK(ledger.current(Tier::device).total() == 0);
}

TEST_CASE("Buffer: the limit applies before memory is allocated, and a failed allocation is not counted")
{
  CountingDevice device;
  MemoryLedger ledger(100);
  const DeviceMemory memory{&device, &ledger};
  const Buffer fits(memory, Category::parameters, DType::f32, {25}, "parameters");
  CHECK_THROWS_AS(Buffer(memory, Category::gradients, DType::bf16, {1}, "gradients"), Error);
  CHECK(device.allocated == 100);
  CHECK(ledger.current(Tier::device).total() == 100);
  // Only the device has the limit.
  const Buffer elsewhere({&device, &ledger, Tier::host}, Category::gradients, DType::f32, {25}, "gradients");
  CHECK(ledger.current(Tier::host).total() == 100);

  device.fails = true;
  CHECK_THROWS_WITH(Buffer({&device, &ledger, Tier::host}, Category::staging, DType::f32, {9}, "staging"),
                    EndsWith(": no memory"));
  CHECK(ledger.current(Tier::host).total() == 100);
  CHECK(ledger.current(Tier::host)[Category::staging] == 0);
}

TEST_CASE("cpu device: memory is aligned to 64 bytes, also memory of no bytes")
{
  const auto device = make_cpu_device();
  CHECK(device->name() == "cpu");
  for (const std::int64_t bytes : {0, 1, 63, 64, 65, 1000, 1 << 20}) {
    void* const memory = device->allocate(bytes);
    CHECK(memory != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
    device->release(memory, bytes);
  }
}

TEST_CASE(
    "cpu device: a large buffer gets the memory of one of as many bytes that is gone; the ledger counts what is in "
    "use")
{
  const auto device = make_cpu_device();
  MemoryLedger ledger;
  const DeviceMemory memory{device.get(), &ledger};
  constexpr std::int64_t large = 3 << 20, elements = large / 4;
  const auto make = [&] {
    return Buffer(memory, Category::gradients, DType::f32, {elements}, "gradients of a bucket");
  };
  const Buffer stays = make();
  const std::byte* gone = nullptr;
  {
    const Buffer comes_and_goes = make();
    gone = comes_and_goes.tensor().raw();
    CHECK(gone != stays.tensor().raw());
    CHECK(ledger.current(Tier::device).total() == 2 * large);
  }
  CHECK(ledger.current(Tier::device).total() == large);
  const Buffer comes_again = make();
  CHECK(comes_again.tensor().raw() == gone);
  CHECK(ledger.current(Tier::device).total() == 2 * large);
#ifdef RANKWISE_POISON
  for (const std::byte byte : std::span(gone, 4000)) REQUIRE(byte == std::byte{0xFF});
#endif
  const Buffer one_more = make();
  CHECK(one_more.tensor().raw() != gone);
}

// AddressSanitizer ends a program that asks for so much.
#if defined(__SANITIZE_ADDRESS__)
#define RANKWISE_UNDER_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RANKWISE_UNDER_ADDRESS_SANITIZER
#endif
#endif
#ifndef RANKWISE_UNDER_ADDRESS_SANITIZER
TEST_CASE("cpu device: more memory than there is ends with an error that says how much")
{
  CHECK_THROWS_WITH(make_cpu_device()->allocate(std::int64_t{1} << 60),
                    EndsWith(": the host is out of memory: cannot allocate 1,152,921,504,606,846,976 bytes"));
}
#endif

TEST_CASE("cpu device: fresh memory holds NaNs in builds that poison it")
{
  const auto device = make_cpu_device();
  MemoryLedger ledger;
  const Buffer buffer({device.get(), &ledger}, Category::workspace, DType::f32, {1000}, "fresh");
#ifdef RANKWISE_POISON
  for (const std::byte byte : std::span(buffer.tensor().raw(), 4000)) REQUIRE(byte == std::byte{0xFF});
#endif
  const auto stream = device->make_stream();
  stream->zero(buffer.tensor());
  stream->synchronise();
  for (const float value : buffer.tensor().span<float>()) REQUIRE(value == 0);
}

TEST_CASE("cpu stream: zeroes and copies just the elements of the view")
{
  const auto stream = make_cpu_device()->make_stream();
  std::vector<float> from{1, 2, 3, 4, 5, 6}, to(6, -1);
  const Tensor source{std::span(from), Shape{6}}, target{std::span(to), Shape{6}};
  stream->copy(target.slice({1, 3}), source.slice({2, 3}));
  CHECK(to == std::vector<float>{-1, 3, 4, 5, -1, -1});
  stream->zero(target.slice({3, 2}));
  CHECK(to == std::vector<float>{-1, 3, 4, 0, 0, -1});
  stream->copy(target.reshaped({2, 3}), source.reshaped({3, 2}));
  CHECK(to == from);
  stream->zero(Tensor());
  stream->copy(Tensor(), Tensor());
  stream->zero(target.slice({6, 0}));
  CHECK(to == from);
}

TEST_CASE("cpu stream: refuses a copy between different types or sizes")
{
  const auto stream = make_cpu_device()->make_stream();
  std::vector<float> floats(6);
  std::vector<std::int32_t> integers(6);
  const Tensor six{std::span(floats), Shape{6}};
  CHECK_THROWS_WITH(stream->copy(six, six.slice({0, 5})),
                    EndsWith(": a copy between tensors of different type or size"));
  CHECK_THROWS_AS(stream->copy(six.slice({0, 5}), six), Error);
  CHECK_THROWS_AS(stream->copy(six, Tensor(std::span(integers), Shape{6})), Error);
  CHECK_THROWS_AS(stream->copy(six, Tensor()), Error);
}

TEST_CASE("Stream: zeroes all of a large tensor and nothing beside it, wherever it begins")
{
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  std::vector<float> memory((std::size_t{33} << 18) + 64);  // 33 MiB: more than is kept in caches
  for (const std::int64_t first : {0, 1, 16}) {
    std::fill(memory.begin(), memory.end(), 1.0F);
    const auto count = static_cast<std::int64_t>(memory.size()) - 32;
    stream->zero(Tensor(memory.data() + first, DType::f32, {count}));
    CHECK(std::count(memory.begin(), memory.end(), 0.0F) == count);
    CHECK(std::count(memory.begin() + first, memory.begin() + first + count, 0.0F) == count);
  }
}

TEST_CASE("Arena: hands out aligned, disjoint pieces, and no more than its size")
{
  const std::unique_ptr<Device> device = make_cpu_device();
  Arena arena(*device, 100 + 200, 2);
  auto* const first = static_cast<std::byte*>(arena.allocate(100));
  auto* const second = static_cast<std::byte*>(arena.allocate(200));
  CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(second) % 64 == 0);
  CHECK(second - first >= 100);
  CHECK_THROWS_AS(arena.allocate(129), Error);
}
