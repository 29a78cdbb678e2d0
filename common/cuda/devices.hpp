#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/memory/device.hpp"

/// @file
/// The GPUs of this machine, and messages between them: the only interface to CUDA for code that is not CUDA code
/// itself. In a build without CUDA there are no GPUs, and check_device() reports that.

namespace rankwise {

class Communicator;
class NcclTransport;

/// The GPU of this rank: number r mod d for rank r of a machine with d GPUs. Its streams run concurrently, its
/// memory is aligned to 256 bytes, and copies between it and host_memory() are asynchronous.
/// @throws Error  when there is none; check_device() reports that earlier.
std::unique_ptr<Device> make_cuda_device();

/// Properties of this rank's GPU.
struct GpuFacts {
  std::string name;               ///< the maker's name for it
  int number = 0;                 ///< its number among the GPUs of the machine
  int count = 0;                  ///< number of GPUs visible to this rank
  std::int64_t memory_bytes = 0;  ///< total memory of the GPU
  std::int64_t free_bytes = 0;    ///< memory that is free now
};

/// Queries the properties of this rank's GPU.
/// @throws Error  when there is no GPU.
GpuFacts gpu_facts();

/// Memory capacity of this rank's device in bytes: for a GPU its free memory, divided equally among the ranks on
/// it; for a CPU memory_for_each() of the ranks of this machine.
/// @param device  accepted by check_device().
std::int64_t capacity_of(DeviceKind device);

/// Rejects a device that this rank cannot use.
/// @throws UserError  in a build without CUDA; without a GPU; with a driver that is older than the build's CUDA.
void check_device(DeviceKind kind);

/// Begins a range of this thread for GPU profilers (NVTX); does nothing without CUDA.
/// @param name  name of the range.
void begin_gpu_range(const char* name);
/// Ends the innermost range of this thread.
void end_gpu_range();

/// Creates a transport over NCCL for the ranks of a communicator, which make this call together and connect with
/// the help of MPI.
/// @param communicator  the ranks; outlives the transport.
/// @param stream        stream of this rank's GPU; outlives the transport.
/// @throws Error        when NCCL cannot start, or in a build without CUDA.
std::unique_ptr<NcclTransport> make_nccl_transport(const Communicator& communicator, Stream& stream);

}  // namespace rankwise
