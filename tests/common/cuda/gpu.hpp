#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/cuda/devices.hpp"
#include "common/memory/device.hpp"

/// @file
/// Helpers for tests of GPUs.

namespace rankwise::testing {

/// A GPU with a ledger and a stream.
struct Gpu {
  MemoryLedger ledger;                                     ///< counts
  std::unique_ptr<Device> device = make_cuda_device();     ///< of this rank
  std::unique_ptr<Stream> stream = device->make_stream();  ///< of the GPU
  DeviceMemory memory{device.get(), &ledger};              ///< the GPU's memory, counted

  /// A buffer with these elements, when the stream is done.
  template <class T>
  Buffer filled(const std::vector<T>& elements)
  {
    Buffer buffer(memory, Category::workspace, dtype_of<T>(), {std::ssize(elements)}, "test data");
    stream->copy(buffer.tensor(), Tensor(const_cast<T*>(elements.data()), dtype_of<T>(), {std::ssize(elements)}));
    stream->synchronise();
    return buffer;
  }
};

}  // namespace rankwise::testing
