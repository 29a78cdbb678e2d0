#pragma once

#include "common/messages/transport.hpp"

/// @file
/// Messages over NCCL, between GPU memories.

namespace rankwise {

/// A transport over NCCL that also offers NCCL's own collectives. Every rank has its own GPU, and tensors are in
/// its memory. All operations are enqueued on the transport's stream, after the work that produces their data;
/// sends and receives that start together form one NCCL group.
///
/// finish() and each collective block the host until the GPU is done, so that the flight recorder knows what a rank
/// waits for. NCCL failures detected meanwhile are thrown as Error.
class NcclTransport : public Transport {
 public:
  /// Leaves shard r of Partition(n, N) of the sum on rank r: one ncclReduce for each shard, in one group.
  virtual void reduce_scatter_sum(const Tensor& values) = 0;
  /// Copies shard q from rank q to all ranks: one ncclBroadcast for each shard, in one group.
  virtual void all_gather(const Tensor& values) = 0;
  /// ncclAllReduce.
  virtual void all_reduce_sum(const Tensor& values) = 0;
  /// ncclBroadcast.
  virtual void broadcast(const Tensor& values, int root) = 0;
  /// ncclReduce; @p values is undefined afterwards on the other ranks.
  virtual void reduce_sum(const Tensor& values, int root) = 0;
};

}  // namespace rankwise
