#include "gpt2/kernels/cuda/cuda.hpp"

namespace rankwise {

namespace {

/// True if the GPU of this thread is an H100 or newer: on older ones cuBLAS's kernels with fused GELU are slower.
bool is_hopper_or_newer()
{
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "asking for the GPU");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking what a GPU can do");
  return major >= 9;
}

}  // namespace

CudaKernels::CudaKernels(const DeviceMemory& memory, Stream& stream, Products products)
    : CudaReferenceKernels(memory, stream, gpu_scratch_bytes),
      on_(cuda_stream(stream)),
      workspace_(memory, Category::workspace, DType::u8, {cublas_workspace_bytes}, "workspace of cuBLAS"),
      cublas_(on_, workspace_.tensor(), products),
      epilogues_pay_(is_hopper_or_newer())
{
}

Kernels make_cuda_kernels(const DeviceMemory& memory, Stream& stream)
{
  return std::make_unique<CudaKernels>(memory, stream, Products::f32);
}

Kernels make_cuda_tf32_kernels(const DeviceMemory& memory, Stream& stream)
{
  return std::make_unique<CudaKernels>(memory, stream, Products::tf32);
}

}  // namespace rankwise
