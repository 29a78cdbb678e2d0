#pragma once

#include <cstdint>
#include <vector>

#include "common/memory/partial_sum.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/files/checkpoint.hpp"

/// @file
/// AdamW over the shards that one rank owns.

namespace rankwise {

/// Views of some ranges of a flat vector.
std::vector<Tensor> slices(const Tensor& flat, const std::vector<Range>& ranges);

/// Views of consecutive pieces of a flat vector, as long as the given ranges.
std::vector<Tensor> cut(const Tensor& flat, const std::vector<Range>& lengths);

/// AdamW for the shards of one rank, with moments, and master weights for bf16, of these elements only. AdamW
/// updates each element independently of the others, so the result is that of an AdamW over all elements.
class ShardedAdamW {
 public:
  /// @param memory      memory for moments and master weights: adamw_bytes() of all shards.
  /// @param stream      stream of the device that updates.
  /// @param table       all parameters; outlives this.
  /// @param own         the shards, as elements of its flat vector.
  /// @param parameters  parameters of each shard, f32 or bf16; these views are updated in place.
  /// @param options     constants.
  /// @throws Error      if memory runs out.
  ShardedAdamW(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
               const std::vector<Range>& own, std::vector<Tensor> parameters, const AdamWOptions& options);

  /// The weights that are updated and their moments, shard by shard.
  const std::vector<Shard>& shards() const { return shards_; }
  /// Sets bf16 parameters to the rounded master weights; does nothing for f32.
  void round(const Kernels& kernels) const;
  /// Updates the parameters of all shards.
  /// @param kernels         kernels on the stream of the device that holds the moments.
  /// @param gradients       gradients of each shard, f32 or bf16, summed over the global batch.
  /// @param learning_rate   learning rate of this step.
  /// @param gradient_scale  factor by which gradients are multiplied.
  void step(const Kernels& kernels, const std::vector<Tensor>& gradients, double learning_rate,
            double gradient_scale);

  /// Sets what is called before each update.
  void before_update(BeforeUpdate call) { before_update_ = std::move(call); }

  /// Number of updates so far.
  std::int64_t updates() const { return of_shards_.front().updates(); }
  /// Continues after @p updates updates; the caller has filled in the moments.
  void resume(std::int64_t updates);

 private:
  std::vector<Tensor> parameters_;
  std::vector<AdamW> of_shards_;
  std::vector<Shard> shards_;
  BeforeUpdate before_update_;
};

}  // namespace rankwise
