#pragma once

#include "common/messages/transport.hpp"

/// @file
/// Communication over NCCL, between the memories of GPUs.

namespace rankwise {

/// A transport over NCCL, with the library's own collectives beside it. Tensors lie in the memory of the ranks' GPUs, of
/// which each rank has one of its own. Everything is put on the transport's stream, behind the work that makes what is
/// sent; sends and receives that start together are one group of NCCL.
///
/// finish(), and each collective, returns on the host when the GPU is done: so the flight recorder knows what a rank waits
/// for. A failure of NCCL that is noticed meanwhile is an Error.
class NcclTransport : public Transport {
 public:
  /// Leaves shard r of Partition(n, N) of the sum on rank r: one ncclReduce a shard, in one group.
  virtual void reduce_scatter_sum(const Tensor& values) = 0;
  /// Copies shard q from rank q to all ranks: one ncclBroadcast a shard, in one group.
  virtual void all_gather(const Tensor& values) = 0;
  /// ncclAllReduce.
  virtual void all_reduce_sum(const Tensor& values) = 0;
  /// ncclBroadcast.
  virtual void broadcast(const Tensor& values, int root) = 0;
  /// ncclReduce; @p values is undefined afterwards on the other ranks.
  virtual void reduce_sum(const Tensor& values, int root) = 0;
};

}  // namespace rankwise
