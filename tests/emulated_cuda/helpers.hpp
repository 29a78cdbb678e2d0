#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdexcept>
#include <string>
#include <vector>

/// @file
/// Helpers for the tests of the emulation: checked calls, arrays on a device, launches.

namespace rankwise {

/// The block's shared memory.
extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];

}  // namespace rankwise

namespace emulated_cuda {

/// Throws unless a call succeeded.
inline void require(cudaError_t code)
{
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorName(code));
}

/// A stream of the current device.
class TestStream {
 public:
  TestStream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  /// As the calls want it.
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event of the current device.
class TestEvent {
 public:
  TestEvent() { require(cudaEventCreateWithFlags(&event_, cudaEventDefault)); }
  ~TestEvent() { cudaEventDestroy(event_); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;

  /// As the calls want it.
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Elements on the current device.
template <class T>
class DeviceArray {
 public:
  /// Elements that hold NaNs.
  explicit DeviceArray(std::size_t count) : count_(count) { require(cudaMalloc(&data_, count * sizeof(T))); }
  /// A copy of @p values, made in the stream's turn.
  DeviceArray(const std::vector<T>& values, cudaStream_t stream) : DeviceArray(values.size())
  {
    require(cudaMemcpyAsync(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice, stream));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  /// First element.
  T* data() const { return data_; }
  /// The elements, when the stream has come to it.
  std::vector<T> read(cudaStream_t stream) const
  {
    std::vector<T> values(count_);
    require(cudaMemcpyAsync(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost, stream));
    return values;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

/// Launches a kernel.
template <class... Parameters, class... Arguments>
cudaError_t launch_on(cudaStream_t stream, dim3 blocks, dim3 threads, std::size_t shared_bytes,
                      void (*kernel)(Parameters...), Arguments... arguments)
{
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace emulated_cuda
