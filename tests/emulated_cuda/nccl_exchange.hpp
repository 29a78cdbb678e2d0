#pragma once

#include <functional>
#include <memory>
#include <mpi.h>
#include <nccl.h>
#include <string>
#include <vector>

#include "tests/emulated_cuda/streams.hpp"

/// @file
/// A call of NCCL as messages of MPI, which start in the order of the stream and are then progressed.

/// One rank's part of a communicator.
struct ncclComm {
  emulated_cuda::Device* device = nullptr;  ///< whose memory messages come from and go to
  MPI_Comm messages = MPI_COMM_NULL;        ///< over which they go
  int rank = 0;                             ///< this process's
  int ranks = 0;                            ///< of the communicator
  std::uint64_t queued = 0;                 ///< operations that were
  std::uint64_t ended = 0;                  ///< operations that have; the next one may begin
  ncclResult_t error = ncclSuccess;         ///< of work that ran
  bool aborted = false;                     ///< work ends without effect
};

namespace emulated_cuda {

/// Bytes that a call has taken in, by message.
using Received = std::vector<std::vector<std::byte>>;

/// One call as messages. A call that all ranks make together sends to itself too, so that all are alike.
struct Call {
  /// Bytes to or from a rank.
  struct Message {
    int peer;           ///< the rank
    const void* data;   ///< of the device: what is sent; null for what is received
    std::size_t bytes;  ///< of it
  };

  int kind;                                     ///< calls of different kinds do not meet
  std::vector<Message> sent;                    ///< to whom what goes
  std::vector<Message> received;                ///< from whom how much comes
  void* output;                                 ///< where what was received goes
  std::size_t output_bytes;                     ///< of it
  std::function<void(const Received&)> finish;  ///< puts it there
};

/// Queues the calls of a group as one operation.
void queue_exchange(const std::shared_ptr<ncclComm>& communicator, cudaStream_t stream, std::vector<Call> calls);

/// The communicator behind a handle; null if there is none.
std::shared_ptr<ncclComm> find_communicator(ncclComm_t communicator);

/// Remembers what went wrong, for ncclGetLastError. @return  @p code.
ncclResult_t nccl_error(ncclResult_t code, const std::string& why);

/// Throws std::runtime_error unless @p code is MPI_SUCCESS.
void require_mpi(int code, const char* doing);

/// One call of the library, from taking the lock to its answer.
template <class Body>
ncclResult_t nccl_call(const char* name, Body body)
{
  const Turn turn;
  if (fault_due(name)) return nccl_error(ncclSystemError, std::string(name) + " was asked to fail");
  if (usable() != cudaSuccess) return ncclUnhandledCudaError;
  try {
    return body();
  } catch (const std::runtime_error& error) {
    return nccl_error(ncclSystemError, error.what());
  }
}

}  // namespace emulated_cuda
