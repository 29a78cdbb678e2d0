#include "tests/emulated_cuda/machine.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

namespace emulated_cuda {

namespace {

thread_local int device_number = 0;
thread_local cudaError_t last_error = cudaSuccess;

/// Which call fails: EMULATED_CUDA_FAULT=NAME[:COUNT[:RANK]].
struct Fault {
  std::string name;     // of the API function; empty for none
  long long count = 1;  // calls until it fails, that one included

  Fault()
  {
    const char* text = std::getenv("EMULATED_CUDA_FAULT");
    if (text == nullptr) return;
    const std::string all(text);
    const std::size_t first = all.find(':');
    name = all.substr(0, first);
    if (first == std::string::npos) return;
    count = std::atoll(all.c_str() + first + 1);
    const std::size_t second = all.find(':', first + 1);
    if (second != std::string::npos && std::atoi(all.c_str() + second + 1) != rank_of_process()) name.clear();
  }
};

}  // namespace

std::size_t Random::below(std::size_t n)
{
  // Steele, Lea and Flood 2014 (SplitMix64), doi:10.1145/2714064.2660195.
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return (z >> 32) * n >> 32;
}

void Device::lose(cudaError_t code, const std::string& why)
{
  if (error != cudaSuccess) return;
  error = code;
  say(why);
}

Machine::Machine()
    : random(static_cast<std::uint64_t>(environment_number("EMULATED_CUDA_SEED", 1)) * 1024 +
             static_cast<std::uint64_t>(rank_of_process())),
      driver_version(static_cast<int>(environment_number("EMULATED_CUDA_DRIVER", runtime_version)))
{
  const auto count = static_cast<int>(environment_number("EMULATED_CUDA_DEVICES", 8));
  const auto capacity = static_cast<std::size_t>(environment_number("EMULATED_CUDA_MEMORY", 2LL << 30));
  for (int i = 0; i < count; ++i)
    devices.push_back(std::make_unique<Device>(Device{i, DeviceMemory(capacity), cudaSuccess}));
}

Machine& machine()
{
  static Machine& all = *new Machine;  // lives as long as the last thread that may call
  return all;
}

int& current_device_number()
{
  return device_number;
}

Device& current_device()
{
  return *machine().devices[static_cast<std::size_t>(device_number)];
}

int rank_of_process()
{
  return static_cast<int>(environment_number("OMPI_COMM_WORLD_RANK", environment_number("PMI_RANK", 0)));
}

long long environment_number(const char* name, long long otherwise)
{
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

void say(const std::string& text)
{
  std::fputs(("emulated CUDA: " + text + "\n").c_str(), stderr);
}

bool fault_due(std::string_view name)
{
  static Fault fault;
  return fault.name == name && --fault.count == 0;
}

void wait_a_little()
{
  static unsigned times = 0;
  const bool sleeps = ++times % 64 == 0;
  Turn::without([sleeps] {
    if (sleeps) {
      usleep(50);
    } else {
      sched_yield();
    }
  });
}

cudaError_t remember(cudaError_t code)
{
  if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
  return code;
}

cudaError_t usable()
{
  if (machine().driver_version / 1000 < runtime_version / 1000) return cudaErrorInsufficientDriver;
  return machine().devices.empty() ? cudaErrorNoDevice : cudaSuccess;
}

}  // namespace emulated_cuda

// ---- CUDA's functions for devices and errors ----------------------------------------------------------------------------

using namespace emulated_cuda;

namespace {

bool exists(int device)
{
  return device >= 0 && static_cast<std::size_t>(device) < machine().devices.size();
}

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* words;
};

constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

}  // namespace

cudaError_t cudaGetDeviceCount(int* count)
{
  *count = 0;
  return machine_call("cudaGetDeviceCount", cudaErrorInitializationError, [&] {
    *count = static_cast<int>(machine().devices.size());
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device)
{
  return machine_call("cudaSetDevice", cudaErrorInvalidDevice, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    device_number = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device)
{
  return machine_call("cudaGetDevice", cudaErrorInitializationError, [&] {
    *device = device_number;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device)
{
  return machine_call("cudaGetDeviceProperties", cudaErrorInvalidDevice, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    *properties = {};
    std::string("emulated GPU").copy(properties->name, sizeof properties->name - 1);
    properties->totalGlobalMem = machine().devices[static_cast<std::size_t>(device)]->memory.capacity();
    properties->sharedMemPerBlock = shared_memory_default;
    properties->sharedMemPerBlockOptin = shared_memory_limit;
    properties->major = 9;
    properties->minor = 0;
    properties->multiProcessorCount = 4;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device)
{
  return machine_call("cudaDeviceGetAttribute", cudaErrorInvalidDevice, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = shared_memory_default;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = shared_memory_limit;
        return cudaSuccess;
      case cudaDevAttrWarpSize:
        *value = warpSize;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
      case cudaDevAttrUnifiedAddressing:
        *value = 1;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device)
{
  return machine_call("cudaDeviceGetPCIBusId", cudaErrorInvalidDevice, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    const std::string id = fmt::format("0000:{:02X}:00.0", device + 1);
    if (length <= static_cast<int>(id.size())) return cudaErrorInvalidValue;
    text[id.copy(text, id.size())] = '\0';
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version)
{
  const Turn turn;
  if (fault_due("cudaDriverGetVersion")) return remember(cudaErrorInvalidValue);
  *version = machine().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version)
{
  const Turn turn;
  if (fault_due("cudaRuntimeGetVersion")) return remember(cudaErrorInvalidValue);
  *version = runtime_version;
  return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
  const Turn turn;
  const cudaError_t code = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return code;
}

cudaError_t cudaPeekAtLastError()
{
  if (last_error == cudaSuccess && usable() == cudaSuccess) return current_device().error;
  return last_error;
}

const char* cudaGetErrorString(cudaError_t error)
{
  for (const ErrorText& text : error_texts)
    if (text.code == error) return text.words;
  return "unrecognized error code";
}

const char* cudaGetErrorName(cudaError_t error)
{
  for (const ErrorText& text : error_texts)
    if (text.code == error) return text.name;
  return "unrecognized error code";
}
