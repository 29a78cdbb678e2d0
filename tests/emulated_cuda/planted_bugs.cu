// One program with bugs of each kind, to show that the emulation notices them: planted_bugs NAME.
//
// Ends with status 0 if the result is right, with 1 and a line if it is wrong or a call reports an error.

#include <iostream>
#include <map>
#include <numeric>
#include <string>

#include "tests/emulated_cuda/helpers.hpp"

using namespace emulated_cuda;

namespace {

constexpr int block_size = 128;

/// The sum of a block's numbers in every thread.
/// @param keeps_barriers  false leaves out the barrier between a step's reads and the next one's writes.
__global__ void block_sum(int* values, bool keeps_barriers)
{
  int* const tile = reinterpret_cast<int*>(rankwise::dynamic_shared_memory);
  const int t = static_cast<int>(threadIdx.x);
  int sum = values[t];
  for (int distance = block_size / 2; distance > 0; distance /= 2) {
    tile[t] = sum;
    __syncthreads();
    sum += tile[t ^ distance];
    if (keeps_barriers) __syncthreads();
  }
  values[t] = sum;
}

/// The same by shuffles, then one value a warp.
/// @param mask  of the shuffles; all 32 lanes make them.
__global__ void warp_sum(int* values, unsigned mask)
{
  int sum = values[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(mask, sum, distance);
  values[threadIdx.x] = sum;
}

constexpr int rounds = 8;

/// The sum of a block's numbers several times over, each time one more, by warps first.
/// @param keeps_barriers  false leaves out the barrier between a round's reads and the next one's writes.
__global__ void repeated_sums(int* values, bool keeps_barriers)
{
  int* const room = reinterpret_cast<int*>(rankwise::dynamic_shared_memory);
  int total = 0;
  for (int round = 0; round < rounds; ++round) {
    int sum = values[threadIdx.x] + round;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int warp = 0; warp < block_size / 32; ++warp) total += room[warp];
    if (keeps_barriers) __syncthreads();
  }
  values[threadIdx.x] = total;
}

/// @param begin, end  numbers that are written; there are block_size.
__global__ void set_ones(int* values, int begin, int end)
{
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += block_size) values[i] = 1;
}

/// Numbers 0 ... block_size-1, and what is expected of them.
bool block_sums(bool keeps_barriers)
{
  const TestStream stream;
  std::vector<int> values(block_size);
  std::iota(values.begin(), values.end(), 0);
  const DeviceArray<int> array(values, stream);
  require(launch_on(stream, 1, block_size, block_size * sizeof(int), block_sum, array.data(), keeps_barriers));
  return array.read(stream) == std::vector<int>(block_size, block_size * (block_size - 1) / 2);
}

bool warp_sums(unsigned mask)
{
  const TestStream stream;
  const DeviceArray<int> array(std::vector<int>(block_size, 1), stream);
  require(launch_on(stream, 1, block_size, 0, warp_sum, array.data(), mask));
  return array.read(stream) == std::vector<int>(block_size, 32);
}

bool sums_repeatedly(bool keeps_barriers)
{
  const TestStream stream;
  const DeviceArray<int> array(std::vector<int>(block_size, 1), stream);
  require(
      launch_on(stream, 1, block_size, block_size / 32 * sizeof(int), repeated_sums, array.data(), keeps_barriers));
  return array.read(stream) == std::vector<int>(block_size, block_size * rounds * (rounds + 1) / 2);
}

bool sets_ones(int begin, int end)
{
  const TestStream stream;
  const DeviceArray<int> array(block_size);
  require(launch_on(stream, 1, block_size, 0, set_ones, array.data(), begin, end));
  return array.read(stream) == std::vector<int>(block_size, 1);
}

/// One stream computes, another copies the result to the host.
bool copies_result(bool waits)
{
  const TestStream compute;
  const TestStream copy;
  const TestEvent computed;
  const DeviceArray<int> array(block_size);
  require(launch_on(compute, 1, block_size, 0, set_ones, array.data(), 0, block_size));
  require(cudaEventRecord(computed, compute));
  if (waits) require(cudaStreamWaitEvent(copy, computed));
  return array.read(copy) == std::vector<int>(block_size, 1);
}

/// The host reads a result in device memory.
bool reads_on_host(bool copies)
{
  const TestStream stream;
  const DeviceArray<int> array(block_size);
  require(launch_on(stream, 1, block_size, 0, set_ones, array.data(), 0, block_size));
  require(cudaStreamSynchronize(stream));
  return (copies ? array.read(stream)[5] : array.data()[5]) == 1;
}

const std::map<std::string, bool (*)()> programs = {
    {"none",
     [] {
       return block_sums(true) && sums_repeatedly(true) && warp_sums(0xffffffffu) && sets_ones(0, block_size) &&
              copies_result(true) && reads_on_host(true);
     }},
    {"missing_barrier", [] { return block_sums(false); }},
    {"hurried_warp", [] { return sums_repeatedly(false); }},
    {"write_before", [] { return sets_ones(-1, block_size); }},
    {"write_behind", [] { return sets_ones(0, block_size + 1); }},
    {"missing_wait", [] { return copies_result(false); }},
    {"wrong_mask", [] { return warp_sums(0x7fffffffu); }},
    {"host_access", [] { return reads_on_host(false); }},
};

}  // namespace

int main(int argc, char** argv)
{
  const auto program = programs.find(argc == 2 ? argv[1] : "");
  if (program == programs.end()) {
    std::cerr
        << "planted_bugs "
           "none|missing_barrier|hurried_warp|write_before|write_behind|missing_wait|wrong_mask|host_access\n";
    return 2;
  }
  try {
    if (program->second()) return 0;
    std::cerr << "wrong result\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}
