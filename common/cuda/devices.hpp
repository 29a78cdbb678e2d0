#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/memory/device.hpp"

/// @file
/// The GPUs of this machine, and messages between them: the one way to them for all code that is not for GPUs itself.
/// In a build without CUDA there are none, and check_device() says so.

namespace rankwise {

class Communicator;
class NcclTransport;

/// The GPU of this rank: number r mod d for rank r of a machine with d of them. Its streams run beside each other, its
/// memory is aligned to 256 bytes, and copies between it and host_memory() go on by themselves.
/// @throws Error  when there is none; check_device() says so before.
std::unique_ptr<Device> make_cuda_device();

/// What is known of this rank's GPU.
struct GpuFacts {
  std::string name;               ///< as its maker calls it
  int number = 0;                 ///< among the GPUs of the machine
  int count = 0;                  ///< of GPUs that this rank sees
  std::int64_t memory_bytes = 0;  ///< of the whole GPU
  std::int64_t free_bytes = 0;    ///< of it, now
};

/// Asks for them.
/// @throws Error  when there is no GPU.
GpuFacts gpu_facts();

/// Bytes that this rank has of its device: of a GPU what is free, shared equally among the ranks on it; of a CPU, whose
/// memory is not asked, the largest number.
/// @param device  as check_device() has passed it.
std::int64_t capacity_of(DeviceKind device);

/// Refuses a device that this rank cannot have.
/// @throws UserError  in a build without CUDA; without a GPU; with a driver that is older than the build's CUDA.
void check_device(DeviceKind kind);

/// Begins and ends a range of this thread for the tools that show what a GPU does (NVTX); nothing without CUDA.
/// @param name  of the range.
void begin_gpu_range(const char* name);
/// Ends the innermost range of this thread.
void end_gpu_range();

/// A transport over NCCL for the ranks of a communicator, which make this call together. They learn of each other over MPI.
/// @param communicator  the ranks; outlives the transport.
/// @param stream        of this rank's GPU; outlives the transport.
/// @throws Error        when NCCL cannot start, or in a build without CUDA.
std::unique_ptr<NcclTransport> make_nccl_transport(const Communicator& communicator, Stream& stream);

}  // namespace rankwise
