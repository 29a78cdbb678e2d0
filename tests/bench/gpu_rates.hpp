#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/memory/device.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The peak rates of a GPU, and the time of work given to it.

namespace rankwise {

/// Seconds of one call of @p call: the mean of as many in a row as last @p least_s together, at least one, after others
/// that made the GPU warm.
/// @param stream  what the calls give their work to; nothing else is on it.
double time_calls(Stream& stream, double least_s, const std::function<void()>& call);

/// Fills @p x (f32 or bf16) with numbers between -1 and 1 that do not repeat soon: of zeros a GPU makes products faster.
void fill_with_noise(Stream& stream, const Tensor& x);

/// The yardsticks of a GPU: square matrix products, and copying from its memory to its memory. They share one buffer.
class GpuRates {
 public:
  /// @param gemm_size   rows and columns of the matrices.
  /// @param copy_bytes  of the copy, and as many of the original.
  /// @throws Error      when memory runs out.
  GpuRates(std::int64_t gemm_size, std::int64_t copy_bytes);

  /// Floating-point operations a second of the product of two matrices of @p type, by the kernels that train.
  /// @param tf32  whether f32 factors are rounded to TF32.
  double matmul_flops(DType type, bool tf32, double least_s) const;
  /// Bytes read and written a second by a copy.
  double copy_bytes_per_s(double least_s) const;

  /// All bytes of the GPU that the yardsticks take.
  std::int64_t held_bytes() const { return ledger_.current(Tier::device).total(); }

 private:
  std::int64_t gemm_size_, copy_bytes_;
  MemoryLedger ledger_;
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cuda);
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  DeviceMemory memory_{device_.get(), &ledger_};
  Kernels kernels_ = make_cuda_kernels(memory_, *stream_);
  Kernels tf32_kernels_ = make_cuda_tf32_kernels(memory_, *stream_);
  Buffer bytes_;  // three matrices of f32, or original and copy
};

}  // namespace rankwise
