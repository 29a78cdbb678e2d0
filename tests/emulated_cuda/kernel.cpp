#include <cstring>
#include <map>

#include <fmt/format.h>

#include "tests/emulated_cuda/block.hpp"
#include "tests/emulated_cuda/kernel_name.hpp"
#include "tests/emulated_cuda/sanitizer.hpp"
#include "tests/emulated_cuda/streams.hpp"

/// @file
/// Launches: what is checked when a kernel is queued, and how it runs.

namespace rankwise {

/// The shared memory of the block that runs.
extern unsigned char dynamic_shared_memory[];
alignas(128) unsigned char dynamic_shared_memory[emulated_cuda::shared_memory_limit + 1024];

}  // namespace rankwise

namespace emulated_cuda {

namespace {

std::map<const void*, std::size_t> shared_memory_asked;  // bytes that a kernel may use, where it has asked for more

struct Launch {
  std::string name;
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes;
  Device* device;
  std::function<void()> thread;
  std::vector<PointerArgument> pointers;
};

bool is_valid(const cudaLaunchConfig_t& config)
{
  const dim3& grid = config.gridDim;
  const dim3& threads = config.blockDim;
  const std::size_t count = std::size_t{threads.x} * threads.y * threads.z;
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffff && grid.y <= 0xffff && grid.z <= 0xffff &&
         count > 0 && threads.x <= 1024 && threads.y <= 1024 && threads.z <= 64 && count <= 1024;
}

/// The first argument that points to memory which the device cannot use; 0 if there is none.
int wrong_pointer(const Launch& launch)
{
  for (const auto& [number, pointer] : launch.pointers)
    if (pointer != nullptr && launch.device->memory.find(pointer, 0) == nullptr &&
        machine().pinned.find(pointer, 0) == nullptr)
      return number;
  return 0;
}

/// Block after block in a random order.
void run_kernel(const Launch& launch)
{
  using rankwise::dynamic_shared_memory;
  const std::size_t count = std::size_t{launch.blocks.x} * launch.blocks.y * launch.blocks.z;
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; ++i) {
    const std::size_t j = machine().random.below(i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  gridDim = launch.blocks;
  blockDim = launch.threads;
  poison(dynamic_shared_memory + launch.shared_bytes, sizeof dynamic_shared_memory - launch.shared_bytes);
  for (const unsigned i : order) {
    blockIdx = {i % gridDim.x, i / gridDim.x % gridDim.y, i / gridDim.x / gridDim.y};
    std::memset(dynamic_shared_memory, 0xff, launch.shared_bytes);
    if (const auto failure = run_block(launch.thread)) {
      launch.device->lose(cudaErrorLaunchFailure, fmt::format("kernel {}: {}", launch.name, *failure));
      break;
    }
  }
  unpoison(dynamic_shared_memory, sizeof dynamic_shared_memory);
}

/// Work of a launch when the stream reaches it.
void take_turn(const Launch& launch)
{
  if (fault_due("kernel")) {
    launch.device->lose(cudaErrorIllegalAddress, fmt::format("kernel {}: asked to fail", launch.name));
  } else if (const int number = wrong_pointer(launch); number != 0) {
    launch.device->lose(
        cudaErrorIllegalAddress,
        fmt::format("kernel {}: illegal address: argument {} is not memory of the device", launch.name, number));
  } else {
    open_device_memory();
    run_kernel(launch);
  }
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel, std::function<void()> thread,
                   std::vector<PointerArgument> pointers)
{
  return runtime_call("cudaLaunchKernelEx", cudaErrorLaunchOutOfResources, [&] {
    if (!is_stream(config->stream, "cudaLaunchKernelEx") || config->stream->device != &current_device())
      return cudaErrorInvalidResourceHandle;
    if (!is_valid(*config)) return cudaErrorInvalidConfiguration;
    const auto asked = shared_memory_asked.find(kernel);
    const std::size_t limit = asked == shared_memory_asked.end() ? shared_memory_default : asked->second;
    if (config->numAttrs != 0 || config->dynamicSmemBytes > limit) return cudaErrorInvalidValue;
    const Launch launch{kernel_name(kernel),    config->gridDim,   config->blockDim,   config->dynamicSmemBytes,
                        config->stream->device, std::move(thread), std::move(pointers)};
    enqueue(config->stream, {"kernel " + launch.name, [launch] {
                               take_turn(launch);
                               return true;
                             }});
    return cudaSuccess;
  });
}

}  // namespace emulated_cuda

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value)
{
  using namespace emulated_cuda;
  return runtime_call("cudaFuncSetAttribute", cudaErrorInvalidValue, [&] {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<std::size_t>(value) > shared_memory_limit) return cudaErrorInvalidValue;
    shared_memory_asked[kernel] = std::max(shared_memory_default, static_cast<std::size_t>(value));
    return cudaSuccess;
  });
}
