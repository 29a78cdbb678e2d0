#include <cstring>
#include <vector>

#include "tests/emulated_cuda/streams.hpp"

/// @file
/// CUDA's functions for memory: allocations, and copies in the order of a stream.

using namespace emulated_cuda;

namespace {

/// The owner of the memory of some bytes.
struct Place {
  cudaMemoryType type;
  Device* device;  // null for the host's
  bool whole;      // all bytes are in one allocation
};

Place place_of(const void* data, std::size_t bytes)
{
  for (const auto& device : machine().devices)
    if (device->memory.covers(data))
      return {cudaMemoryTypeDevice, device.get(), device->memory.find(data, bytes) != nullptr};
  if (machine().pinned.find(data, 0) != nullptr)
    return {cudaMemoryTypeHost, nullptr, machine().pinned.find(data, bytes) != nullptr};
  return {cudaMemoryTypeUnregistered, nullptr, true};
}

bool fits(cudaMemcpyKind kind, const Place& to, const Place& from)
{
  const bool to_device = to.device != nullptr;
  const bool from_device = from.device != nullptr;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

/// Queues @p work, which moves bytes, and waits for it if @p waits.
cudaError_t move_bytes(cudaStream_t stream, const char* name, bool waits, std::function<void()> work)
{
  const auto done = std::make_shared<bool>(false);
  enqueue(stream, {name, [done, work = std::move(work)] {
                     open_device_memory();
                     work();
                     *done = true;
                     return true;
                   }});
  if (waits) run_until([&] { return *done || stream->device->error != cudaSuccess; });
  return stream->device->error;
}

}  // namespace

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total)
{
  return runtime_call("cudaMemGetInfo", cudaErrorUnknown, [&] {
    *free = current_device().memory.free_bytes();
    *total = current_device().memory.capacity();
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** data, std::size_t bytes)
{
  return runtime_call("cudaMalloc", cudaErrorMemoryAllocation, [&] {
    *data = nullptr;
    if (bytes == 0) return cudaSuccess;
    *data = current_device().memory.allocate(bytes);
    return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFree(void* data)
{
  return runtime_call("cudaFree", cudaErrorInvalidValue, [&] {
    if (data == nullptr) return cudaSuccess;
    Device* const device = place_of(data, 0).device;
    if (device == nullptr) return cudaErrorInvalidValue;
    drain(device);
    if (device->error == cudaSuccess && device->memory.damaged() != nullptr)
      device->lose(cudaErrorIllegalAddress, "illegal address: the host wrote just before or behind an allocation");
    if (device->error != cudaSuccess) return device->error;
    return device->memory.release(data) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned)
{
  return runtime_call("cudaHostAlloc", cudaErrorMemoryAllocation, [&] {
    *data = bytes == 0 ? nullptr : machine().pinned.allocate(bytes);
    return *data == nullptr && bytes != 0 ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* data)
{
  return runtime_call("cudaFreeHost", cudaErrorInvalidValue, [&] {
    if (data == nullptr) return cudaSuccess;
    drain(nullptr);
    return machine().pinned.release(data) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer)
{
  return runtime_call("cudaPointerGetAttributes", cudaErrorInvalidValue, [&] {
    const Place place = place_of(pointer, 0);
    void* const address = const_cast<void*>(pointer);
    switch (place.type) {
      case cudaMemoryTypeDevice:
        *attributes = {place.type, place.device->number, address, nullptr};
        break;
      case cudaMemoryTypeHost:
        *attributes = {place.type, current_device_number(), address, address};
        break;
      case cudaMemoryTypeUnregistered:
        *attributes = {place.type, -1, nullptr, address};
        break;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
  return runtime_call("cudaMemcpyAsync", cudaErrorInvalidValue, [&] {
    if (!is_stream(stream, "cudaMemcpyAsync")) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    const Place target = place_of(to, bytes);
    const Place source = place_of(from, bytes);
    if (!target.whole || !source.whole || !fits(kind, target, source)) return cudaErrorInvalidValue;
    // Ordinary memory of the host is read before the call returns, and has been written when it does.
    if (source.type == cudaMemoryTypeUnregistered && target.type != cudaMemoryTypeUnregistered) {
      const auto* const begin = static_cast<const std::byte*>(from);
      return move_bytes(stream, "cudaMemcpyAsync", false, [to, kept = std::vector(begin, begin + bytes)] {
        std::memcpy(to, kept.data(), kept.size());
      });
    }
    return move_bytes(stream, "cudaMemcpyAsync", target.type == cudaMemoryTypeUnregistered,
                      [to, from, bytes] { std::memmove(to, from, bytes); });
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream)
{
  return runtime_call("cudaMemsetAsync", cudaErrorInvalidValue, [&] {
    if (!is_stream(stream, "cudaMemsetAsync")) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    const Place place = place_of(data, bytes);
    if (!place.whole || place.type == cudaMemoryTypeUnregistered) return cudaErrorInvalidValue;
    return move_bytes(stream, "cudaMemsetAsync", false, [data, value, bytes] { std::memset(data, value, bytes); });
  });
}
