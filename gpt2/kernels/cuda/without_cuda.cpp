#include "common/base/error.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The kernels of a GPU in a build without CUDA: there are none. check_device() has said so before.

namespace rankwise {

std::unique_ptr<Kernels> make_cuda_kernels(const DeviceMemory&, Stream&)
{
  throw Error("a build without CUDA has no kernels for a GPU");
}

std::unique_ptr<Kernels> make_cuda_tf32_kernels(const DeviceMemory&, Stream&)
{
  throw Error("a build without CUDA has no kernels for a GPU");
}

std::unique_ptr<Kernels> make_cuda_reference_kernels(const DeviceMemory&, Stream&)
{
  throw Error("a build without CUDA has no kernels for a GPU");
}

}  // namespace rankwise
