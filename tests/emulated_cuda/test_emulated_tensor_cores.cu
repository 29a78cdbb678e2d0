#include <cuda_pipeline_primitives.h>
#include <tensor_cores.h>

#include "tests/catch.hpp"
#include "tests/emulated_cuda/helpers.hpp"
#include "tests/emulated_cuda/machine.hpp"

using namespace emulated_cuda;

namespace {

constexpr int lanes = 32;

/// Four numbers a thread by asynchronous copies, one a group; of the last one nothing is read.
/// @param behind  groups that are not waited for.
__global__ void copy_numbers(int* to, const int* from, std::size_t behind)
{
  int* const room = reinterpret_cast<int*>(rankwise::dynamic_shared_memory);
  const int t = static_cast<int>(threadIdx.x);
  for (int i = 0; i < 4; ++i) {
    __pipeline_memcpy_async(room + 4 * t + i, from + 4 * t + i, sizeof(int), i < 3 ? 0 : sizeof(int));
    __pipeline_commit();
  }
  __pipeline_wait_prior(behind);
  for (int i = 0; i < 4; ++i) to[4 * t + i] = room[4 * t + i];
}

/// A lane's numbers of four matrices, whose elements are 256 m + 16 line + column.
__global__ void load_all(unsigned* to, bool transposed)
{
  const unsigned lane = threadIdx.x, first = 256 * (lane / 8) + 16 * (lane % 8);
  unsigned row[4], words[4];
  for (unsigned i = 0; i < 4; ++i) row[i] = (first + 2 * i) | (first + 2 * i + 1) << 16;
  load_matrices(words, row, transposed);
  for (unsigned m = 0; m < 4; ++m) to[4 * lane + m] = words[m];
}

/// The lower half of the warp loads, the upper half multiplies.
__global__ void do_different_things(unsigned* to)
{
  unsigned words[4]{};
  float sums[2][2][2]{};
  const unsigned factor[4]{};
  if (threadIdx.x < 16)
    load_matrices(words, factor, false);
  else
    multiply_matrices(sums, factor, factor);
  to[threadIdx.x] = words[0];
}

/// One lane stays away.
__global__ void leave_one_out(unsigned* to)
{
  unsigned words[4]{};
  const unsigned row[4]{};
  if (threadIdx.x != 7) load_matrices(words, row, false);
  to[threadIdx.x] = words[0];
}

/// Result of copy_numbers() for 1, 2, ... when it does not wait for the last groups.
std::vector<int> copied(std::size_t behind)
{
  const TestStream stream;
  std::vector<int> numbers;
  for (int i = 0; i < 4 * lanes; ++i) numbers.push_back(i + 1);
  const DeviceArray<int> from(numbers, stream), to(numbers.size());
  require(launch_on(stream, 1, lanes, 4 * lanes * sizeof(int), copy_numbers, to.data(), from.data(), behind));
  return to.read(stream);
}

/// The current device is one that no other case loses.
void use_device(int number)
{
  require(cudaSetDevice(number));
}

}  // namespace

TEST_CASE("asynchronous copies: are complete after their thread has waited, including their zeros")
{
  use_device(0);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    machine().random = Random(seed);
    const std::vector<int> numbers = copied(0);
    for (int i = 0; i < 4 * lanes; ++i) CHECK(numbers[static_cast<std::size_t>(i)] == (i % 4 < 3 ? i + 1 : 0));
  }
}

TEST_CASE("asynchronous copies: without a wait some of the group are missing, and none of other groups")
{
  use_device(0);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    machine().random = Random(seed);
    const std::vector<int> numbers = copied(2);
    int missing = 0;
    for (int i = 0; i < 4 * lanes; ++i) {
      const bool there = numbers[static_cast<std::size_t>(i)] == (i % 4 < 3 ? i + 1 : 0);
      if (i % 4 < 2) CHECK(there);
      missing += there ? 0 : 1;
    }
    CHECK(missing > 0);
    CHECK(missing < 2 * lanes);
  }
}

TEST_CASE("tensor cores: matrices are spread over the lanes of a warp, by lines or by columns")
{
  use_device(0);
  const TestStream stream;
  for (const bool transposed : {false, true}) {
    const DeviceArray<unsigned> array(4 * lanes);
    require(launch_on(stream, 1, lanes, 0, load_all, array.data(), transposed));
    const std::vector<unsigned> words = array.read(stream);
    for (unsigned lane = 0; lane < lanes; ++lane)
      for (unsigned m = 0; m < 4; ++m) {
        const unsigned i = lane / 4, j = lane % 4 * 2;
        const unsigned first = transposed ? 16 * j + i : 16 * i + j, step = transposed ? 16 : 1;
        CHECK(words[4 * lane + m] == ((256 * m + first) | (256 * m + first + step) << 16));
      }
  }
}

// From here each case loses a device.

TEST_CASE("tensor cores: lanes that come to different instructions are an error")
{
  use_device(1);
  const TestStream stream;
  const DeviceArray<unsigned> array(lanes);
  require(launch_on(stream, 1, lanes, 0, do_different_things, array.data()));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
}

TEST_CASE("tensor cores: a lane that does not take part is an error")
{
  use_device(2);
  const TestStream stream;
  const DeviceArray<unsigned> array(lanes);
  require(launch_on(stream, 1, lanes, 0, leave_one_out, array.data()));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
}
