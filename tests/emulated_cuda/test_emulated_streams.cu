#include <algorithm>
#include <cstring>

#include "tests/catch.hpp"
#include "tests/emulated_cuda/helpers.hpp"
#include "tests/emulated_cuda/machine.hpp"

using namespace emulated_cuda;

namespace {

__global__ void write_value(int* to, int value)
{
  *to = value;
}

__global__ void copy_value(int* to, const int* from)
{
  *to = *from;
}

__global__ void append_digit(int* number, int digit)
{
  *number = 10 * *number + digit;
}

/// Pinned elements of the host.
struct PinnedArray {
  int* data = nullptr;

  explicit PinnedArray(std::size_t count)
  {
    require(cudaHostAlloc(&data, count * sizeof(int), cudaHostAllocDefault));
  }
  ~PinnedArray() { cudaFreeHost(data); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
};

/// How many of ten seeds let @p holds() be true.
template <class F>
int seeds_that(F holds)
{
  int count = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    machine().random = Random(seed);
    if (holds()) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("stream: its own work stays in order")
{
  const TestStream stream;
  const auto digits_in_order = [&] {
    const DeviceArray<int> number({0}, stream);
    for (int digit = 1; digit <= 6; ++digit)
      require(launch_on(stream, 1, 1, 0, append_digit, number.data(), digit));
    return number.read(stream)[0] == 123456;
  };
  CHECK(seeds_that(digits_in_order) == 10);
}

TEST_CASE("stream: an event orders the work of two streams, and without it some seed shows the race")
{
  const TestStream first;
  const TestStream second;
  const auto copies_what_was_written = [&](bool waits) {
    const DeviceArray<int> from({1}, first);
    const DeviceArray<int> to({0}, second);
    const TestEvent written;
    require(cudaStreamSynchronize(first));
    require(launch_on(first, 1, 1, 0, write_value, from.data(), 2));
    require(cudaEventRecord(written, first));
    if (waits) require(cudaStreamWaitEvent(second, written));
    require(launch_on(second, 1, 1, 0, copy_value, to.data(), from.data()));
    return to.read(second)[0] == 2;
  };
  CHECK(seeds_that([&] { return copies_what_was_written(true); }) == 10);
  CHECK(seeds_that([&] { return copies_what_was_written(false); }) < 10);
}

TEST_CASE("stream: a wait refers to the last record of the event before the wait")
{
  const TestStream first;
  const TestStream second;
  const TestEvent event;
  const auto sees_first_record = [&] {
    const DeviceArray<int> number({0}, first);
    require(cudaEventRecord(event, first));
    require(cudaStreamWaitEvent(second, event));
    // This record follows the work of the second stream: waiting for it would never end.
    require(launch_on(second, 1, 1, 0, append_digit, number.data(), 1));
    const TestEvent appended;
    require(cudaEventRecord(appended, second));
    require(cudaStreamWaitEvent(first, appended));
    require(launch_on(first, 1, 1, 0, append_digit, number.data(), 2));
    require(cudaEventRecord(event, first));
    require(cudaEventSynchronize(event));
    return number.read(first)[0] == 12;
  };
  CHECK(seeds_that(sees_first_record) == 10);
}

TEST_CASE("stream: queries and times of events")
{
  const TestStream stream;
  const TestEvent begin;
  const TestEvent end;
  CHECK(cudaEventQuery(begin) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  require(cudaEventRecord(begin, stream));
  const DeviceArray<int> number({0}, stream);
  for (int i = 0; i < 100; ++i) require(launch_on(stream, 1, 1, 0, append_digit, number.data(), 0));
  require(cudaEventRecord(end, stream));
  float time_ms = -1.0f;
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(cudaEventElapsedTime(&time_ms, begin, end) == cudaErrorNotReady);
  while (cudaEventQuery(end) == cudaErrorNotReady) continue;
  CHECK(cudaEventElapsedTime(&time_ms, begin, end) == cudaSuccess);
  CHECK(time_ms >= 0.0f);
}

TEST_CASE("stream: the default stream and other devices' streams are refused")
{
  const TestStream stream;
  const TestEvent event;
  const DeviceArray<int> number({0}, stream);
  CHECK(launch_on(nullptr, 1, 1, 0, write_value, number.data(), 1) == cudaErrorInvalidResourceHandle);
  CHECK(cudaMemsetAsync(number.data(), 0, 4, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamSynchronize(nullptr) == cudaErrorInvalidResourceHandle);
  require(cudaSetDevice(1));
  const TestStream other;
  CHECK(launch_on(stream, 1, 1, 0, write_value, number.data(), 1) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(event, other) == cudaErrorInvalidResourceHandle);
  require(cudaSetDevice(0));
  cudaGetLastError();
}

TEST_CASE("copy: ordinary memory may be used again at once, pinned memory may not")
{
  const TestStream stream;
  const DeviceArray<int> array(1);
  const auto copies_old_value = [&](int* on_host) {
    *on_host = 1;
    require(cudaMemcpyAsync(array.data(), on_host, sizeof(int), cudaMemcpyDefault, stream));
    *on_host = 2;
    return array.read(stream)[0] == 1;
  };
  int ordinary = 0;
  const PinnedArray pinned(1);
  CHECK(copies_old_value(&ordinary));
  CHECK_FALSE(copies_old_value(pinned.data));
}

TEST_CASE("copy: to ordinary memory is done on return, to pinned memory when the stream is waited for")
{
  const TestStream stream;
  const DeviceArray<int> array({7}, stream);
  int ordinary = 0;
  const PinnedArray pinned(1);
  *pinned.data = 0;
  require(cudaMemcpyAsync(&ordinary, array.data(), sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK(ordinary == 7);
  require(cudaMemcpyAsync(pinned.data, array.data(), sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK(*pinned.data == 0);
  require(cudaStreamSynchronize(stream));
  CHECK(*pinned.data == 7);
}

TEST_CASE("copy: wrong directions and ranges are refused")
{
  const TestStream stream;
  const DeviceArray<int> array({7}, stream);
  int on_host[2] = {};
  CHECK(cudaMemcpyAsync(array.data(), on_host, 4, cudaMemcpyDeviceToHost, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(on_host, array.data(), 4, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(array.data(), on_host, 8, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(array.data(), 0, 8, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(on_host, 0, 4, stream) == cudaErrorInvalidValue);
  CHECK(cudaFree(on_host) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}

TEST_CASE("memory: fresh memory is full of NaNs, and the device's capacity is limited")
{
  const TestStream stream;
  const DeviceArray<float> array(std::size_t{1} << 20);  // more than any case has freed
  const std::vector<float> found = array.read(stream);
  CHECK(std::all_of(found.begin(), found.end(), [](float value) { return std::isnan(value); }));
  CHECK(reinterpret_cast<std::uintptr_t>(array.data()) % 256 == 0);

  std::size_t free = 0;
  std::size_t total = 0;
  require(cudaMemGetInfo(&free, &total));
  CHECK(total == std::size_t{2} << 30);
  void* data = nullptr;
  CHECK(cudaMalloc(&data, free + 1) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  std::size_t free_after = 0;
  {
    const DeviceArray<char> more(1000);
    require(cudaMemGetInfo(&free_after, &total));
    CHECK(free_after == free - 1024);
  }
  require(cudaMemGetInfo(&free_after, &total));
  CHECK(free_after == free);
}

TEST_CASE("memory: an address identifies its owner")
{
  const TestStream stream;
  const DeviceArray<int> array({7}, stream);
  const PinnedArray pinned(1);
  int ordinary = 0;
  cudaPointerAttributes attributes{};
  require(cudaPointerGetAttributes(&attributes, array.data()));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(attributes.device == 0);
  require(cudaPointerGetAttributes(&attributes, pinned.data));
  CHECK(attributes.type == cudaMemoryTypeHost);
  require(cudaPointerGetAttributes(&attributes, &ordinary));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
}

TEST_CASE("device: its reported properties")
{
  int count = 0;
  require(cudaGetDeviceCount(&count));
  CHECK(count == 8);
  char bus[32] = "";
  require(cudaDeviceGetPCIBusId(bus, sizeof bus, 2));
  CHECK(std::strcmp(bus, "0000:03:00.0") == 0);
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, 0));
  CHECK(std::strcmp(properties.name, "emulated GPU") == 0);
  CHECK(properties.major == 9);
  CHECK(cudaSetDevice(8) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
}
