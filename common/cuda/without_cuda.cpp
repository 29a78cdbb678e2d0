#include "common/base/error.hpp"
#include "common/cuda/devices.hpp"
#include "common/messages/nccl_transport.hpp"

/// @file
/// The interface to GPUs in a build without CUDA: there are none.

namespace rankwise {

void check_device(DeviceKind kind)
{
  if (kind != DeviceKind::cuda) return;
  throw UserError(
      "--device=cuda, but these programs were built without CUDA.",
      "scripts/build.sh gpu builds them for GPUs, as build-gpu/lessons/..., with the CUDA toolkit, cuBLAS and NCCL "
      "(scripts/setup.sh --how). Or use --device=cpu.");
}

std::unique_ptr<Device> make_cuda_device()
{
  throw Error("a build without CUDA has no GPU");
}

GpuFacts gpu_facts()
{
  throw Error("a build without CUDA has no GPU");
}

std::unique_ptr<NcclTransport> make_nccl_transport(const Communicator&, Stream&)
{
  throw Error("a build without CUDA has no NCCL");
}

void begin_gpu_range(const char*) {}

void end_gpu_range() {}

}  // namespace rankwise
