#include <algorithm>
#include <numeric>

#include "tests/catch.hpp"
#include "tests/emulated_cuda/helpers.hpp"
#include "tests/emulated_cuda/machine.hpp"

using namespace emulated_cuda;

namespace {

template <class T>
__device__ T* shared()
{
  return reinterpret_cast<T*>(rankwise::dynamic_shared_memory);
}

/// Thread t of block b writes where it is.
__global__ void write_place(uint4* places)
{
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  places[block * blockDim.x * blockDim.y * blockDim.z + thread] =
      make_uint4(blockIdx.x, blockIdx.y, threadIdx.x, threadIdx.z);
}

/// Each block turns its elements around, @p rounds times.
__global__ void turn_around(int* values, int rounds)
{
  int* const tile = shared<int>();
  int value = values[blockIdx.x * blockDim.x + threadIdx.x];
  for (int i = 0; i < rounds; ++i) {
    tile[threadIdx.x] = value;
    __syncthreads();
    value = tile[blockDim.x - 1 - threadIdx.x];
    __syncthreads();
  }
  values[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

/// As turn_around() with one round, but without a barrier.
__global__ void turn_around_too_soon(int* values)
{
  int* const tile = shared<int>();
  tile[threadIdx.x] = values[threadIdx.x];
  values[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

/// Results of each shuffle, 5 numbers per thread.
__global__ void exchange_in_warps(int* results)
{
  const int t = static_cast<int>(threadIdx.x);
  int* const mine = results + 5 * t;
  const unsigned all = 0xffffffffu;
  mine[0] = __shfl_sync(all, t, 3);
  mine[1] = __shfl_xor_sync(all, t, 5);
  mine[2] = __shfl_down_sync(all, t, 4);
  mine[3] = __shfl_down_sync(all, t, 3, 8);
  mine[4] = static_cast<int>(__ballot_sync(all, t % 3 == 0));
}

/// The lower and the upper half of each warp sum their numbers, at different times.
__global__ void sum_halves(double* results)
{
  const unsigned lane = threadIdx.x % 32;
  double sum = threadIdx.x;
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
  __syncwarp();
  results[threadIdx.x] = sum;
}

/// Shared memory as each block finds it; it leaves zeros there.
__global__ void read_shared(float* found)
{
  found[blockIdx.x * blockDim.x + threadIdx.x] = shared<float>()[threadIdx.x];
  shared<float>()[threadIdx.x] = 0.0f;
}

__global__ void count(int* total, unsigned long long* largest, float* sum)
{
  atomicAdd(total, 1);
  atomicMax(largest, static_cast<unsigned long long>(blockIdx.x * blockDim.x + threadIdx.x));
  atomicAdd(sum, 0.5f);
}

/// Adds in the order in which threads run: different orders have different roundings.
__global__ void add_in_any_order(float* sum)
{
  atomicAdd(sum, 1.0f / static_cast<float>(1 + threadIdx.x + blockIdx.x * blockDim.x));
}

__global__ void leave_before_barrier()
{
  if (threadIdx.x == 3) return;
  __syncthreads();
}

__global__ void two_barriers()
{
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void half_a_mask(int* results)
{
  results[threadIdx.x] = static_cast<int>(__ballot_sync(0x0000ffffu, 1));
}

__global__ void whole_mask_for_half(int* results)
{
  if (threadIdx.x < 16) results[threadIdx.x] = __shfl_xor_sync(0xffffffffu, static_cast<int>(threadIdx.x), 1);
}

__global__ void write_value(int* to, int value)
{
  *to = value;
}

/// The current device is one that no other case loses.
void use_device(int number)
{
  require(cudaSetDevice(number));
}

}  // namespace

TEST_CASE("kernel: every thread of a grid knows its place")
{
  use_device(0);
  const TestStream stream;
  const DeviceArray<uint4> places(6 * 24);
  require(launch_on(stream, dim3(2, 3), dim3(4, 2, 3), 0, write_place, places.data()));
  const std::vector<uint4> result = places.read(stream);
  for (unsigned i = 0; i < result.size(); ++i) {
    const unsigned block = i / 24;
    const unsigned thread = i % 24;
    CHECK(result[i].x == block % 2);
    CHECK(result[i].y == block / 2);
    CHECK(result[i].z == thread % 4);
    CHECK(result[i].w == thread / 8);
  }
}

TEST_CASE("kernel: threads meet at barriers")
{
  use_device(0);
  const TestStream stream;
  std::vector<int> values(5 * 96);
  std::iota(values.begin(), values.end(), 0);
  const DeviceArray<int> array(values, stream);
  require(launch_on(stream, 5, 96, 96 * sizeof(int), turn_around, array.data(), 7));
  const std::vector<int> result = array.read(stream);
  for (int i = 0; i < 5 * 96; ++i) CHECK(result[static_cast<std::size_t>(i)] == i / 96 * 96 + 95 - i % 96);
}

TEST_CASE("kernel: a missing barrier is detected with every seed")
{
  use_device(0);
  const TestStream stream;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    machine().random = Random(seed);
    std::vector<int> values(96);
    std::iota(values.begin(), values.end(), 0);
    const DeviceArray<int> array(values, stream);
    require(launch_on(stream, 1, 96, 96 * sizeof(int), turn_around_too_soon, array.data()));
    std::reverse(values.begin(), values.end());
    CHECK(array.read(stream) != values);
  }
}

TEST_CASE("kernel: a warp exchanges values as on a device")
{
  use_device(0);
  const TestStream stream;
  const DeviceArray<int> array(64 * 5);
  require(launch_on(stream, 1, 64, 0, exchange_in_warps, array.data()));
  const std::vector<int> result = array.read(stream);
  for (int t = 0; t < 64; ++t) {
    const int first = t / 32 * 32;
    const int* const mine = result.data() + 5 * t;
    CHECK(mine[0] == first + 3);
    CHECK(mine[1] == first + (t % 32 ^ 5));
    CHECK(mine[2] == (t % 32 + 4 < 32 ? t + 4 : t));
    CHECK(mine[3] == (t % 8 + 3 < 8 ? t + 3 : t));
    CHECK(static_cast<unsigned>(mine[4]) == (first == 0 ? 0x49249249u : 0x92492492u));
  }
}

TEST_CASE("kernel: parts of a warp exchange values on their own")
{
  use_device(0);
  const TestStream stream;
  const DeviceArray<double> array(64);
  require(launch_on(stream, 1, 64, 0, sum_halves, array.data()));
  const std::vector<double> result = array.read(stream);
  for (int t = 0; t < 64; ++t) CHECK(result[static_cast<std::size_t>(t)] == 16 * (t / 16 * 16) + 120);
}

TEST_CASE("kernel: atomic operations")
{
  use_device(0);
  const TestStream stream;
  const DeviceArray<int> total({0}, stream);
  const DeviceArray<unsigned long long> largest({0}, stream);
  const DeviceArray<float> sum({1.0f}, stream);
  require(launch_on(stream, 3, 50, 0, count, total.data(), largest.data(), sum.data()));
  CHECK(total.read(stream)[0] == 150);
  CHECK(largest.read(stream)[0] == 149);
  CHECK(sum.read(stream)[0] == 76.0f);
}

TEST_CASE("kernel: the seed alone determines the order of the threads")
{
  use_device(0);
  const TestStream stream;
  const auto sum_with = [&](std::uint64_t seed, unsigned blocks, unsigned threads) {
    machine().random = Random(seed);
    const DeviceArray<float> sum({0.0f}, stream);
    require(launch_on(stream, blocks, threads, 0, add_in_any_order, sum.data()));
    return sum.read(stream)[0];
  };
  for (const auto& [blocks, threads] : {std::pair{1u, 512u}, std::pair{512u, 1u}}) {
    const float first = sum_with(1, blocks, threads);
    CHECK(sum_with(1, blocks, threads) == first);
    bool any_differs = false;
    for (std::uint64_t seed = 2; seed <= 10; ++seed)
      any_differs = any_differs || sum_with(seed, blocks, threads) != first;
    CHECK(any_differs);
  }
}

TEST_CASE("kernel: each block finds NaNs in shared memory")
{
  use_device(0);
  const TestStream stream;
  const DeviceArray<float> found(std::vector<float>(64), stream);
  require(launch_on(stream, 2, 32, 32 * sizeof(float), read_shared, found.data()));
  for (const float value : found.read(stream)) CHECK(std::isnan(value));
}

TEST_CASE("kernel: shared memory is limited as on a device")
{
  use_device(0);
  const TestStream stream;
  const DeviceArray<int> array(std::vector<int>(32), stream);
  CHECK(launch_on(stream, 1, 32, 49153, turn_around, array.data(), 1) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(turn_around, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449) ==
        cudaErrorInvalidValue);
  require(cudaFuncSetAttribute(turn_around, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
  CHECK(launch_on(stream, 1, 32, 232448, turn_around, array.data(), 1) == cudaSuccess);
  CHECK(launch_on(stream, 1, 1025, 0, write_value, array.data(), 1) == cudaErrorInvalidConfiguration);
  CHECK(launch_on(stream, dim3(1, 65536), 1, 0, write_value, array.data(), 1) == cudaErrorInvalidConfiguration);
  CHECK(launch_on(stream, dim3(0), 1, 0, write_value, array.data(), 1) == cudaErrorInvalidConfiguration);
  require(cudaStreamSynchronize(stream));
}

// From here each case loses a device.

TEST_CASE("kernel: a thread that leaves before a barrier is an error")
{
  use_device(1);
  const TestStream stream;
  require(launch_on(stream, 2, 64, 0, leave_before_barrier));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(launch_on(stream, 2, 64, 0, leave_before_barrier) == cudaErrorLaunchFailure);
}

TEST_CASE("kernel: threads at different barriers are an error")
{
  use_device(2);
  const TestStream stream;
  require(launch_on(stream, 1, 32, 0, two_barriers));
  CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
}

TEST_CASE("kernel: a mask that does not name the caller is an error")
{
  use_device(3);
  const TestStream stream;
  const DeviceArray<int> array(32);
  require(launch_on(stream, 1, 32, 0, half_a_mask, array.data()));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
}

TEST_CASE("kernel: a mask with a thread that does not take part is an error")
{
  use_device(4);
  const TestStream stream;
  const DeviceArray<int> array(32);
  require(launch_on(stream, 1, 32, 0, whole_mask_for_half, array.data()));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
}

TEST_CASE("kernel: an argument that points to memory of the host is an error")
{
  use_device(5);
  const TestStream stream;
  int on_host = 1;
  require(launch_on(stream, 1, 1, 0, write_value, &on_host, 2));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  CHECK(on_host == 1);
}
