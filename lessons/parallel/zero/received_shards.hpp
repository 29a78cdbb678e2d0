#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/group.hpp"
#include "gpt2/gradient_sum.hpp"

/// @file
/// A rank's shard of the gradients of every rank.

namespace rankwise {

/// Where a rank receives its shard of a bucket's gradients from each of N ranks, when it has to add them one by one:
/// adds_rank_by_rank(). One bucket at a time.
class ReceivedShards {
 public:
  /// @param memory  where the shards are received, counted as Category::exact_sums; outlives this.
  /// @param all     layout of all gradients: their type, and the token embedding's range if the head's gradient of it is
  ///                a separate sum.
  /// @param own     this rank's shards, ranges of the flat vector.
  /// @param ranks   separate_ranks(): N; or 1, if nothing is to be received.
  ReceivedShards(const DeviceMemory& memory, const GradientLayout& all, const std::vector<Range>& own,
                 std::int64_t ranks);

  /// N, or 1.
  std::int64_t ranks() const { return ranks_; }
  /// Sends every rank its shard of a bucket and receives this rank's. All ranks make this call.
  /// @param shard      number of the shard.
  /// @param gradients  of the whole bucket; and of the token embedding in it, if the head's gradient is a separate sum.
  /// @cost             sends (N-1)/N of the gradients, as a reduce-scatter does.
  void receive(std::size_t shard, const std::vector<Tensor>& gradients, Group& group);
  /// What has come from a rank, as BucketGradients::of() has it; until the next receive().
  /// @param rank   of the group.
  /// @param shard  number of the shard that was received.
  std::vector<Tensor> from(std::int64_t rank, std::size_t shard) const;

  /// Bytes of the buffers, from the sizes alone; the parameters are those of the constructor.
  static std::int64_t bytes(const GradientLayout& all, const std::vector<Range>& own, std::int64_t ranks);

 private:
  std::vector<Range> own_;
  Range tied_;
  std::int64_t ranks_;
  Buffer flat_, tied_gradients_;  // shards by rank
};

}  // namespace rankwise
