#pragma once

#include <cuda_runtime.h>

/// @file
/// The part of NCCL that Rankwise uses: names, signatures and numbers of NCCL 2.28, messages over MPI.

/// Every call's answer.
enum ncclResult_t {
  ncclSuccess = 0,             ///< all is well
  ncclUnhandledCudaError = 1,  ///< a call of CUDA failed
  ncclSystemError = 2,         ///< a call of the system failed
  ncclInternalError = 3,       ///< no other fits
  ncclInvalidArgument = 4,     ///< an argument that cannot be
  ncclInvalidUsage = 5,        ///< calls that do not go together
  ncclRemoteError = 6,         ///< another rank failed
  ncclInProgress = 7,          ///< it has not ended
};

/// Types of elements.
enum ncclDataType_t {
  ncclInt8 = 0,      ///< 1 byte
  ncclUint8 = 1,     ///< 1 byte
  ncclInt32 = 2,     ///< 4 bytes
  ncclInt64 = 4,     ///< 8 bytes
  ncclFloat32 = 7,   ///< 4 bytes
  ncclFloat64 = 8,   ///< 8 bytes
  ncclBfloat16 = 9,  ///< 2 bytes, added in f32
};

/// How elements are combined.
enum ncclRedOp_t {
  ncclSum = 0,  ///< added
};

constexpr int NCCL_UNIQUE_ID_BYTES = 128;  ///< of an id

/// What the ranks of one communicator have in common before they have it.
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];  ///< the rank of MPI_COMM_WORLD that made it, and a number
};

struct ncclComm;
/// One rank's part of a communicator.
using ncclComm_t = ncclComm*;

extern "C" {  // found by name, as the real ones are

/// An id. The process that makes it must be one of the communicator's ranks.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
/// This process's rank of a new communicator, on the current device; all ranks make this call.
ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank);
/// Waits until what was queued has ended.
ncclResult_t ncclCommFinalize(ncclComm_t communicator);
/// Gives a communicator back when what was queued has ended; all ranks make this call.
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
/// Gives a communicator back; what was queued ends without effect.
ncclResult_t ncclCommAbort(ncclComm_t communicator);
/// What went wrong while work ran.
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error);
/// The number of ranks.
ncclResult_t ncclCommCount(ncclComm_t communicator, int* ranks);
/// This process's rank.
ncclResult_t ncclCommUserRank(ncclComm_t communicator, int* rank);
/// A result in words.
const char* ncclGetErrorString(ncclResult_t result);
/// The last error of this process in words, whatever the communicator.
const char* ncclGetLastError(ncclComm_t communicator);
/// The version: 22809 is 2.28.9.
ncclResult_t ncclGetVersion(int* version);

/// Begins a group: its calls become one operation of the stream.
ncclResult_t ncclGroupStart();
/// Ends a group and queues it.
ncclResult_t ncclGroupEnd();
/// Sends @p count elements; ends when the peer takes them.
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream);
/// Receives @p count elements.
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream);
/// Leaves the sum over all ranks on all ranks.
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream);
/// Leaves the sum over all ranks on @p root.
ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t operation,
                        int root, ncclComm_t communicator, cudaStream_t stream);
/// Leaves what @p root has on all ranks.
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream);
/// Leaves @p count elements of the sum on each rank: rank r has the r-th.
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream);
/// Leaves the @p count elements of each rank on all ranks, one rank's after the other's.
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream);

}  // extern "C"
