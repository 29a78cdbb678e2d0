#pragma once

#include <memory>
#include <string>

#include "common/cuda/cuda.hpp"
#include "common/cuda/devices.hpp"

/// @file
/// One GPU as a Device.

namespace rankwise {

/// A GPU and its memory.
class CudaDevice final : public Device {
 public:
  /// The GPU of this rank.
  CudaDevice();
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return name_; }
  void* allocate(std::int64_t bytes) override;
  void release(void* memory, std::int64_t bytes) noexcept override;
  std::unique_ptr<Stream> make_stream() override;
  Device& host_memory() override { return *host_memory_; }

 private:
  int number_;
  std::string name_;
  std::unique_ptr<Device> host_memory_;
};

/// A stream of a GPU.
class CudaStream final : public Stream {
 public:
  /// @param number  the GPU's number on its machine.
  explicit CudaStream(int number);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void zero(const Tensor& to) override;
  void copy(const Tensor& to, const Tensor& from) override;
  void add(const Tensor& to, const Tensor& from) override;
  void synchronise() override;
  Event record() override;
  void wait(const Event& event) override;

  /// CUDA's handle. Also makes this stream's GPU the current device of the calling thread.
  cudaStream_t handle();

 private:
  int number_;
  cudaStream_t handle_ = nullptr;
};

}  // namespace rankwise
