#include "gpt2/kernels/cuda/reference/reference.hpp"

namespace rankwise {

CudaReferenceKernels::CudaReferenceKernels(const DeviceMemory& memory, Stream& stream, std::int64_t scratch_bytes)
    : stream_(stream),
      scratch_(memory, Category::workspace, DType::f32, {scratch_bytes / bytes_of(DType::f32)},
               "scratch of the kernels")
{
  cuda_stream(stream);  // refuses a stream of another device
}

Kernels make_cuda_reference_kernels(const DeviceMemory& memory, Stream& stream)
{
  return std::make_unique<CudaReferenceKernels>(memory, stream);
}

}  // namespace rankwise
