#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/memory/device.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/04_zero1/step_plan.hpp"

/// @file
/// Gradients that live from the backward pass that makes them to the message that sums them.

namespace rankwise {

/// The gradients of those buckets that a backward pass is at. There is room for a bucket from the first unit of it that the
/// pass comes to until somebody frees it. A bucket without units of its own, for tensors that are replicated, has room from any
/// first unit on. Where a tied tensor's two gradients are kept apart, the second has room of its own.
class BucketGradients {
 public:
  /// @param memory   where they lie, counted as gradients.
  /// @param stream   of that device, which computes them.
  /// @param table    of all units; outlives this.
  /// @param buckets  of its elements, each once.
  /// @param layout   of all gradients: their type, and where the tied tensor's lies if its two are kept apart.
  BucketGradients(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
                  std::vector<Bucket> buckets, const GradientLayout& layout);

  /// Makes room for the gradients of a unit, all zero, where there is none yet.
  /// @return  where the backward pass adds them: the tensors of the unit, in the table's order.
  std::vector<Tensor> make_slot(std::int64_t unit);
  /// Where another unit adds to the gradient of a tied tensor, which has room.
  /// @param tied  its gradient.
  /// @return      @p tied itself; or room of its own, all zero, where the two are kept apart.
  Tensor second_of(const Tensor& tied);
  /// The gradients of a bucket, (its elements); and with the bucket of a tied tensor the second of its gradients, where the
  /// two are kept apart.
  std::vector<Tensor> of(std::size_t bucket) const;
  /// Those of the elements @p part of the flat vector alone.
  /// @param part  within the bucket.
  std::vector<Tensor> of(std::size_t bucket, Range part) const;
  /// Gives back the room of a bucket.
  void free(std::size_t bucket);

 private:
  Tensor buffer_of(Range elements);

  DeviceMemory memory_;
  Stream& stream_;
  const ParameterTable& table_;
  std::vector<Bucket> buckets_;
  GradientLayout layout_;
  std::vector<Buffer> flat_;  // by bucket
  Buffer tied_;
};

/// The most bytes of them that are alive at once, when a bucket is freed before the one behind the next is begun: those of
/// two neighbours, of the embedding's bucket, to which the head adds too, and of tensors that are replicated; and the second of
/// the token embedding's gradients.
std::int64_t alive_bytes(const StepPlan& plan);

}  // namespace rankwise
