#pragma once

#include <cstdint>
#include <vector>

#include "gpt2/adamw.hpp"
#include "gpt2/checkpoint.hpp"

/// @file
/// AdamW over the shards that one rank owns.

namespace rankwise {

/// Views of some ranges of a flat vector.
std::vector<Tensor> slices(const Tensor& flat, const std::vector<Range>& ranges);

/// Views of vectors that lie one behind the other, as long as some ranges are.
std::vector<Tensor> cut(const Tensor& flat, const std::vector<Range>& lengths);

/// An AdamW for each of a rank's shards; together they hold moments, and with bf16 master weights, of these elements and
/// of no others. An element's update depends on no other element, so it is that of an AdamW over all of them.
class ShardedAdamW {
 public:
  /// @param memory      where moments and master weights lie: adamw_bytes() of all shards.
  /// @param stream      of the device that updates.
  /// @param table       all parameters; outlives this.
  /// @param own         the shards, of its flat vector.
  /// @param parameters  those of each shard, f32 or bf16; they stay where they are.
  /// @param options     constants.
  /// @throws Error      when there is no room.
  ShardedAdamW(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
               const std::vector<Range>& own, std::vector<Tensor> parameters, const AdamWOptions& options);

  /// Where the weights that are updated and their moments lie, shard by shard.
  const std::vector<Shard>& shards() const { return shards_; }
  /// Makes the parameters the rounded copy of the master weights; f32 parameters stay as they are.
  void round(const Kernels& kernels) const;
  /// Updates the parameters of all shards.
  /// @param kernels         on the stream of the device that holds the moments.
  /// @param gradients       of each shard, f32 or bf16, sums over the global batch.
  /// @param learning_rate   of this step.
  /// @param gradient_scale  what gradients are multiplied by.
  void step(const Kernels& kernels, const std::vector<Tensor>& gradients, double learning_rate,
            double gradient_scale);

  /// Updates made so far.
  std::int64_t updates() const { return of_shards_.front().updates(); }
  /// Goes on after @p updates updates whose moments somebody has filled in.
  void resume(std::int64_t updates);

 private:
  std::vector<Tensor> parameters_;
  std::vector<AdamW> of_shards_;
  std::vector<Shard> shards_;
};

}  // namespace rankwise
