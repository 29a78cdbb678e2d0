#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/device.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/04_zero1/step_plan.hpp"

/// @file
/// Gradients that live from the backward pass that makes them to the message that sums them.

namespace rankwise {

/// The gradients of those buckets that a backward pass is at. There is room for a bucket from the first unit of it that the
/// pass comes to until somebody frees it; the head adds to the token embedding's gradient, so the embedding's bucket is
/// there from the first unit on. Where the tied embedding's two gradients are kept apart, the head's has room of its own.
class BucketGradients {
 public:
  /// @param memory   where they lie, counted as gradients.
  /// @param stream   of that device, which computes them.
  /// @param table    of all units; outlives this.
  /// @param buckets  of make_buckets().
  /// @param layout   of all gradients: their type, and where the token embedding's lies if the head's part of it is kept
  ///                 apart.
  BucketGradients(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
                  std::vector<Bucket> buckets, const GradientLayout& layout);

  /// Makes room for the gradients of a unit, all zero, where there is none yet.
  void make_room(std::int64_t unit);
  /// Where the backward pass adds the gradients of the units that there is room for.
  const ModelTensors& tensors() const { return tensors_; }
  /// The gradients of a bucket, (its elements); and with the last bucket the head's part of the token embedding's,
  /// (V C), where that is kept apart.
  std::vector<Tensor> of(std::size_t bucket) const;
  /// Those of the elements @p part of the flat vector alone.
  /// @param part  within the bucket.
  std::vector<Tensor> of(std::size_t bucket, Range part) const;
  /// Gives back the room of a bucket.
  void free(std::size_t bucket);

 private:
  std::size_t bucket_of(std::int64_t unit) const;
  Tensor room_of(std::int64_t unit);

  DeviceMemory memory_;
  Stream& stream_;
  const ParameterTable& table_;
  std::vector<Bucket> buckets_;
  GradientLayout layout_;
  std::vector<Buffer> flat_;  // by bucket
  Buffer tied_;
  ModelTensors tensors_;
};

/// The most bytes of them that are alive at once, when a bucket is freed before the one behind the next is begun: those of
/// two neighbours and of the embedding's bucket, and the head's part of the token embedding's gradient.
std::int64_t alive_bytes(const StepPlan& plan);

}  // namespace rankwise
