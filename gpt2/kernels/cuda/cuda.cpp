#include "gpt2/kernels/cuda/cuda.hpp"

#include <fmt/format.h>

namespace rankwise {

void check_cublas(cublasStatus_t code, std::string_view doing, SourceLocation where)
{
  if (code != CUBLAS_STATUS_SUCCESS)
    throw Error(
        fmt::format("cuBLAS failed at {}: {}, {}", doing, cublasGetStatusName(code), cublasGetStatusString(code)),
        where);
}

Cublas::Cublas(cudaStream_t stream, const Tensor& workspace)
{
  check_cublas(cublasCreate(&handle_), "starting cuBLAS");
  check_cublas(cublasSetStream(handle_, stream), "giving cuBLAS a stream");
  check_cublas(cublasSetWorkspace(handle_, workspace.raw(), static_cast<std::size_t>(workspace.bytes())),
               "giving cuBLAS memory");
  check_cublas(cublasSetMathMode(handle_, CUBLAS_DEFAULT_MATH), "asking cuBLAS for f32");
}

Cublas::~Cublas()
{
  cublasDestroy(handle_);
}

CudaKernels::CudaKernels(const DeviceMemory& memory, Stream& stream)
    : stream_(stream),
      on_(cuda_stream(stream)),
      workspace_(memory, Category::workspace, DType::u8, {cublas_workspace_bytes}, "workspace of cuBLAS"),
      scratch_(memory, Category::workspace, DType::f32, {gpu_scratch_bytes / bytes_of(DType::f32)},
               "partial sums of kernels"),
      cublas_(on_, workspace_.tensor())
{
}

std::unique_ptr<Kernels> make_cuda_kernels(const DeviceMemory& memory, Stream& stream)
{
  return std::make_unique<CudaKernels>(memory, stream);
}

}  // namespace rankwise
