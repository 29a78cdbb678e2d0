#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// @file
/// The part of the CUDA runtime that Rankwise uses, on the CPU: names, signatures and numbers of CUDA 13.
///
/// Kernels are plain functions; a launch keeps a copy of the arguments and runs later (tests/emulated_cuda/README.md).

// ---- Words of the language ------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// ---- Types of several values ----------------------------------------------------------------------------------------

/// Two f32.
struct alignas(8) float2 {
  float x;  ///< first
  float y;  ///< second
};
/// Four f32 that move together.
struct alignas(16) float4 {
  float x;  ///< first
  float y;  ///< second
  float z;  ///< third
  float w;  ///< fourth
};
/// Four int that move together.
struct alignas(16) int4 {
  int x;  ///< first
  int y;  ///< second
  int z;  ///< third
  int w;  ///< fourth
};
/// Three unsigned int.
struct uint3 {
  unsigned x;  ///< first
  unsigned y;  ///< second
  unsigned z;  ///< third
};
/// Four unsigned int that move together.
struct alignas(16) uint4 {
  unsigned x;  ///< first
  unsigned y;  ///< second
  unsigned z;  ///< third
  unsigned w;  ///< fourth
};

/// A value of its parts.
inline float2 make_float2(float x, float y)
{
  return {x, y};
}
/// A value of its parts.
inline float4 make_float4(float x, float y, float z, float w)
{
  return {x, y, z, w};
}
/// A value of its parts.
inline int4 make_int4(int x, int y, int z, int w)
{
  return {x, y, z, w};
}
/// A value of its parts.
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z)
{
  return {x, y, z};
}
/// A value of its parts.
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
  return {x, y, z, w};
}

/// The size of a grid or of a block; what is not given is 1.
struct dim3 {
  unsigned x;  ///< along the first axis, which runs fastest
  unsigned y;  ///< along the second
  unsigned z;  ///< along the third

  /// Sizes along the three axes.
  constexpr dim3(unsigned along_x = 1, unsigned along_y = 1, unsigned along_z = 1)
      : x(along_x), y(along_y), z(along_z)
  {
  }
};

// ---- What a thread of a kernel sees ---------------------------------------------------------------------------------

extern uint3 threadIdx;  ///< this thread in its block
extern uint3 blockIdx;   ///< this block in the grid
extern dim3 blockDim;    ///< threads of a block
extern dim3 gridDim;     ///< blocks of the grid
/// Threads of a warp.
constexpr int warpSize = 32;

namespace emulated_cuda {

/// The calls that the threads of a warp make together.
enum class WarpCall : std::uint8_t {
  synchronize,
  shuffle,
  shuffle_xor,
  shuffle_down,
  ballot,
  load_matrices,
  multiply_matrices
};

/// What a thread brings to a call in which the threads of its warp compute something together.
struct WarpWork {
  /// Does the work of all of them, when the last one has come. @p lanes are the addresses of what each has brought.
  void (*work)(const std::uint64_t* lanes);
};

/// The line of a kernel, for messages.
struct Line {
  const char* file = "";  ///< as the compiler was given it
  unsigned number = 0;    ///< from 1
};

/// Waits for the other threads of the block.
void block_barrier(Line where);

/// Waits for the threads of the warp that @p mask names, and exchanges @p value with them.
/// @param value  what the thread gives: to a call that loads or multiplies matrices the address of a WarpWork.
/// @param lane   whose value is wanted, by a shuffle.
/// @return  that lane's value; for a ballot the lanes whose value is not zero.
std::uint64_t warp_exchange(WarpCall call, unsigned mask, std::uint64_t value, int lane, Line where);

/// This thread's number in its warp.
int lane_of_thread();

/// The value of a lane, as its own type; @p lane is the calling thread's own where there is none such.
template <class T>
T shuffle(WarpCall call, unsigned mask, T value, int lane, Line where)
{
  static_assert(std::is_arithmetic_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = warp_exchange(call, mask, bits, lane, where);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// The old value of @p at, which becomes @p value: threads take turns only where they wait for each other.
template <class T>
T replace(T* at, T value)
{
  return std::exchange(*at, value);
}

}  // namespace emulated_cuda

/// Waits for all threads of the block.
inline void __syncthreads(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE())
{
  emulated_cuda::block_barrier({file, line});
}

/// Waits for the threads of the warp that @p mask names.
inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(),
                       unsigned line = __builtin_LINE())
{
  emulated_cuda::warp_exchange(emulated_cuda::WarpCall::synchronize, mask, 0, 0, {file, line});
}

/// The lanes of @p mask whose @p predicate is not zero.
inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                              unsigned line = __builtin_LINE())
{
  return static_cast<unsigned>(
      emulated_cuda::warp_exchange(emulated_cuda::WarpCall::ballot, mask, predicate != 0, 0, {file, line}));
}

/// @p value of lane @p source among the @p width lanes that belong together.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, const char* file = __builtin_FILE(),
              unsigned line = __builtin_LINE())
{
  const int first = emulated_cuda::lane_of_thread() & ~(width - 1);
  return emulated_cuda::shuffle(emulated_cuda::WarpCall::shuffle, mask, value, first | (source & (width - 1)),
                                {file, line});
}

/// @p value of the lane whose number differs by the bits of @p difference; its own where that is in a later group.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int difference, int width = warpSize, const char* file = __builtin_FILE(),
                  unsigned line = __builtin_LINE())
{
  const int own = emulated_cuda::lane_of_thread();
  const int other = own ^ difference;
  return emulated_cuda::shuffle(emulated_cuda::WarpCall::shuffle_xor, mask, value,
                                other <= (own | (width - 1)) ? other : own, {file, line});
}

/// @p value of the lane that is @p distance further; its own where that is outside of the group.
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = warpSize,
                   const char* file = __builtin_FILE(), unsigned line = __builtin_LINE())
{
  const int own = emulated_cuda::lane_of_thread();
  const int other = own + static_cast<int>(distance);
  return emulated_cuda::shuffle(emulated_cuda::WarpCall::shuffle_down, mask, value,
                                other <= (own | (width - 1)) ? other : own, {file, line});
}

/// Adds to @p at and gives its value before.
inline int atomicAdd(int* at, int value)
{
  return emulated_cuda::replace(at, *at + value);
}
/// Adds to @p at and gives its value before.
inline unsigned atomicAdd(unsigned* at, unsigned value)
{
  return emulated_cuda::replace(at, *at + value);
}
/// Adds to @p at and gives its value before.
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value)
{
  return emulated_cuda::replace(at, *at + value);
}
/// Adds to @p at and gives its value before.
inline float atomicAdd(float* at, float value)
{
  return emulated_cuda::replace(at, *at + value);
}
/// Adds to @p at and gives its value before.
inline double atomicAdd(double* at, double value)
{
  return emulated_cuda::replace(at, *at + value);
}
/// Leaves the smaller value in @p at and gives its value before.
inline int atomicMin(int* at, int value)
{
  return emulated_cuda::replace(at, value < *at ? value : *at);
}
/// Leaves the smaller value in @p at and gives its value before.
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value)
{
  return emulated_cuda::replace(at, value < *at ? value : *at);
}
/// Leaves the larger value in @p at and gives its value before.
inline int atomicMax(int* at, int value)
{
  return emulated_cuda::replace(at, value > *at ? value : *at);
}
/// Leaves the larger value in @p at and gives its value before.
inline unsigned long long atomicMax(unsigned long long* at, unsigned long long value)
{
  return emulated_cuda::replace(at, value > *at ? value : *at);
}
/// What this thread wrote before is seen before what it writes after.
inline void __threadfence() {}

// ---- What the host calls --------------------------------------------------------------------------------------------

/// What a call says about itself, or about work that failed before it.
enum cudaError {
  cudaSuccess = 0,                       ///< all is well
  cudaErrorInvalidValue = 1,             ///< an argument that cannot be
  cudaErrorMemoryAllocation = 2,         ///< not enough memory
  cudaErrorInitializationError = 3,      ///< the runtime could not start
  cudaErrorInvalidConfiguration = 9,     ///< more threads, blocks or shared memory than a device has
  cudaErrorInvalidMemcpyDirection = 21,  ///< a direction that does not exist
  cudaErrorInsufficientDriver = 35,      ///< the driver is older than the runtime
  cudaErrorInvalidDeviceFunction = 98,   ///< no such kernel
  cudaErrorNoDevice = 100,               ///< the machine has no device
  cudaErrorInvalidDevice = 101,          ///< no device of that number
  cudaErrorInvalidResourceHandle = 400,  ///< a stream or an event that is none, or another device's
  cudaErrorNotReady = 600,               ///< the work that was asked about has not ended
  cudaErrorIllegalAddress = 700,         ///< a kernel used memory that is not the device's
  cudaErrorLaunchOutOfResources = 701,   ///< the launch needs more than the device has left
  cudaErrorMisalignedAddress = 716,      ///< a kernel used memory that is not aligned as it should be
  cudaErrorLaunchFailure = 719,          ///< a kernel failed
  cudaErrorNotSupported = 801,           ///< not on this system
  cudaErrorUnknown = 999,                ///< no other fits
};
/// Every call's answer.
using cudaError_t = cudaError;

/// Which way bytes are copied.
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,      ///< on the host
  cudaMemcpyHostToDevice = 1,    ///< to a device
  cudaMemcpyDeviceToHost = 2,    ///< from a device
  cudaMemcpyDeviceToDevice = 3,  ///< on a device, or between two
  cudaMemcpyDefault = 4,         ///< as the addresses say
};

/// Whose memory an address is in.
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,  ///< ordinary memory of the host
  cudaMemoryTypeHost = 1,          ///< pinned memory of the host
  cudaMemoryTypeDevice = 2,        ///< a device's memory
};

/// What can be asked about a device.
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,            ///< 1024
  cudaDevAttrMaxSharedMemoryPerBlock = 8,       ///< bytes, without asking for more
  cudaDevAttrWarpSize = 10,                     ///< 32
  cudaDevAttrMultiProcessorCount = 16,          ///< how many blocks run at once, at least
  cudaDevAttrUnifiedAddressing = 41,            ///< 1
  cudaDevAttrComputeCapabilityMajor = 75,       ///< 9
  cudaDevAttrComputeCapabilityMinor = 76,       ///< 0
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97  ///< bytes, for kernels that ask for more
};

/// What can be set for a kernel.
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,     ///< bytes a launch may ask for
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,  ///< a hint, without effect here
};

struct CUstream_st;
struct CUevent_st;
/// A queue of work of one device.
using cudaStream_t = CUstream_st*;
/// A mark in a stream.
using cudaEvent_t = CUevent_st*;
/// Details of a launch; none are offered here.
struct cudaLaunchAttribute;

constexpr unsigned cudaStreamDefault = 0;       ///< a stream that waits for the default stream
constexpr unsigned cudaStreamNonBlocking = 1;   ///< a stream that waits for none
constexpr unsigned cudaEventDefault = 0;        ///< an event that knows its time
constexpr unsigned cudaEventBlockingSync = 1;   ///< who waits for it sleeps
constexpr unsigned cudaEventDisableTiming = 2;  ///< it does not know its time
constexpr unsigned cudaHostAllocDefault = 0;    ///< pinned memory
constexpr unsigned cudaHostAllocPortable = 1;   ///< pinned memory for all devices

/// What a device is.
struct cudaDeviceProp {
  char name[256];                      ///< "emulated GPU"
  std::size_t totalGlobalMem;          ///< bytes
  std::size_t sharedMemPerBlock;       ///< bytes, without asking for more
  std::size_t sharedMemPerBlockOptin;  ///< bytes, for kernels that ask for more
  int major;                           ///< of the compute capability
  int minor;                           ///< of the compute capability
  int multiProcessorCount;             ///< how many blocks run at once, at least
};

/// What is known about an address.
struct cudaPointerAttributes {
  cudaMemoryType type;  ///< whose memory it is in
  int device;           ///< whose it is, -1 for ordinary memory
  void* devicePointer;  ///< as kernels use it; null for ordinary memory
  void* hostPointer;    ///< as the host uses it; null for a device's memory
};

/// How a kernel is launched.
struct cudaLaunchConfig_t {
  dim3 gridDim;                  ///< blocks
  dim3 blockDim;                 ///< threads of a block
  std::size_t dynamicSmemBytes;  ///< shared memory of a block
  cudaStream_t stream;           ///< behind the work of which it runs
  cudaLaunchAttribute* attrs;    ///< null
  unsigned numAttrs;             ///< 0
};

/// The number of devices.
cudaError_t cudaGetDeviceCount(int* count);
/// Makes a device this host thread's own.
cudaError_t cudaSetDevice(int device);
/// This host thread's device.
cudaError_t cudaGetDevice(int* device);
/// What a device is.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
/// One number about a device.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
/// A device's address on the machine: "0000:01:00.0".
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device);
/// The newest version of CUDA that the driver knows: 13000 is 13.0.
cudaError_t cudaDriverGetVersion(int* version);
/// The version of this runtime.
cudaError_t cudaRuntimeGetVersion(int* version);

/// Bytes of the current device that are free, and all of them.
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
/// Memory of the current device, filled with NaNs.
cudaError_t cudaMalloc(void** data, std::size_t bytes);
/// Gives memory of a device back when all its work has ended.
cudaError_t cudaFree(void* data);
/// Pinned memory of the host, filled with NaNs.
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags);
/// Gives pinned memory back when all work has ended.
cudaError_t cudaFreeHost(void* data);
/// Whose memory an address is in.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
/// Copies bytes in a stream's turn.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
/// Sets bytes in a stream's turn.
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream);

/// A stream of the current device.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
/// The stream goes when its work has ended.
cudaError_t cudaStreamDestroy(cudaStream_t stream);
/// Waits until the stream's work has ended.
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
/// Whether the stream's work has ended.
cudaError_t cudaStreamQuery(cudaStream_t stream);
/// What is queued from now on waits for the event as it was recorded last.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
/// Waits until all work of the current device has ended.
cudaError_t cudaDeviceSynchronize();

/// An event of the current device.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
/// The event goes; who waits for it still does.
cudaError_t cudaEventDestroy(cudaEvent_t event);
/// The event happens when the stream's work so far has ended.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
/// Waits until the event has happened.
cudaError_t cudaEventSynchronize(cudaEvent_t event);
/// Whether the event has happened.
cudaError_t cudaEventQuery(cudaEvent_t event);
/// The time between two events.
cudaError_t cudaEventElapsedTime(float* time_ms, cudaEvent_t begin, cudaEvent_t end);

/// The last error of this host thread, which is forgotten unless the device is lost.
cudaError_t cudaGetLastError();
/// The last error of this host thread.
cudaError_t cudaPeekAtLastError();
/// An error in words.
const char* cudaGetErrorString(cudaError_t error);
/// An error's name: "cudaErrorIllegalAddress".
const char* cudaGetErrorName(cudaError_t error);

/// Sets something for a kernel.
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

/// Sets something for a kernel.
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value)
{
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
/// Memory of the current device, of any type.
template <class T>
cudaError_t cudaMalloc(T** data, std::size_t bytes)
{
  return cudaMalloc(reinterpret_cast<void**>(data), bytes);
}
/// Pinned memory of the host, of any type.
template <class T>
cudaError_t cudaHostAlloc(T** data, std::size_t bytes, unsigned flags)
{
  return cudaHostAlloc(reinterpret_cast<void**>(data), bytes, flags);
}

namespace emulated_cuda {

/// An argument of a kernel that is an address.
struct PointerArgument {
  int number;           ///< among the arguments, from 1
  const void* pointer;  ///< where it points
};

/// Queues a launch.
/// @param kernel    its address, for its name and attributes.
/// @param thread    what each thread does.
/// @param pointers  the arguments that are checked before it runs.
cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel, std::function<void()> thread,
                   std::vector<PointerArgument> pointers);

}  // namespace emulated_cuda

/// Queues a launch of @p kernel with a copy of the arguments.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments)
{
  static_assert((std::is_trivially_copyable_v<std::remove_cv_t<Parameters>> && ...),
                "arguments are copied as bytes");
  const std::tuple<std::remove_cv_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  std::vector<emulated_cuda::PointerArgument> pointers;
  std::apply(
      [&pointers](const auto&... value) {
        [[maybe_unused]] int number = 0;
        [[maybe_unused]] const auto note = [&](const auto& v) {
          ++number;
          if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(v)>>)
            pointers.push_back({number, static_cast<const void*>(v)});
        };
        (note(value), ...);
      },
      values);
  return emulated_cuda::launch(
      config, reinterpret_cast<const void*>(kernel), [kernel, values] { std::apply(kernel, values); },
      std::move(pointers));
}
