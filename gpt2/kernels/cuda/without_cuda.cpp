#include "common/base/error.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// Stubs for the kernels of a GPU in a build without CUDA; check_device() has already refused --device=cuda.

namespace rankwise {

Kernels make_cuda_kernels(const DeviceMemory&, Stream&)
{
  throw Error("a build without CUDA has no kernels for a GPU");
}

Kernels make_cuda_tf32_kernels(const DeviceMemory&, Stream&)
{
  throw Error("a build without CUDA has no kernels for a GPU");
}

std::string cuda_products()
{
  throw Error("a build without CUDA has no kernels for a GPU");
}

Kernels make_cuda_reference_kernels(const DeviceMemory&, Stream&)
{
  throw Error("a build without CUDA has no kernels for a GPU");
}

}  // namespace rankwise
