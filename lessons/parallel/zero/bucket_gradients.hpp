#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/memory/device.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/step_plan.hpp"

/// @file
/// Gradients that live from the backward pass that computes them to the reduce-scatter that sums them.

namespace rankwise {

/// Gradients of the buckets that are alive in a backward pass. A bucket is allocated when the backward pass reaches
/// the first of its units, and lives until free(). The bucket of replicated tensors, which has no units of its own,
/// is allocated with the first unit of any bucket. In exact arithmetic the second gradient of a tied tensor has a
/// buffer of its own.
class BucketGradients {
 public:
  /// @param memory   where buffers are allocated, counted as gradients.
  /// @param stream   of that device, which computes them.
  /// @param table    all units; outlives this.
  /// @param buckets  ranges of its elements; each element is in one bucket.
  /// @param layout   of all gradients: their type, and the tied tensor's range if its two gradients are separate
  ///                 sums.
  BucketGradients(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
                  std::vector<Bucket> buckets, const GradientLayout& layout);

  /// Allocates the gradients of a unit's bucket, all zero, unless they are alive already.
  /// @return  tensors of the unit, in the table's order, to which the backward pass adds.
  std::vector<Tensor> allocate(std::int64_t unit);
  /// Tensor to which a second unit adds the gradient of a tied tensor.
  /// @param tied  its first gradient, which is alive.
  /// @return      @p tied itself; or a buffer of its own, all zero, if the two gradients are separate sums.
  Tensor tied_to(const Tensor& tied);
  /// Gradients of a bucket, (its elements); followed by the second gradient of a tied tensor in this bucket, if the
  /// two are separate sums.
  std::vector<Tensor> of(std::size_t bucket) const;
  /// The same, of the elements @p part of the flat vector only.
  /// @param part  range within the bucket.
  std::vector<Tensor> of(std::size_t bucket, Range part) const;
  /// Frees the gradients of a bucket.
  void free(std::size_t bucket);

 private:
  /// Gradients of elements of one bucket: a view of its buffer, flat_[bucket], to which the backward pass adds. If the
  /// bucket is not alive, its buffer is allocated first: for all elements of the bucket, of type layout_.type, counted
  /// as gradients, all zero.
  /// @param elements  neighbours in the flat vector of table_. If there are none, nothing is allocated.
  /// @return          view of @p elements; an empty tensor if there are none.
  /// @throws Error    if they are in no bucket, or memory runs out.
  Tensor buffer_of(Range elements);

  DeviceMemory memory_;
  Stream& stream_;
  const ParameterTable& table_;
  std::vector<Bucket> buckets_;
  GradientLayout layout_;
  std::vector<Buffer> flat_;  // by bucket; empty if it is not alive
  Buffer tied_;
};

/// Peak bytes of BucketGradients if each bucket is freed before the next but one is allocated: two neighbouring
/// buckets, the embedding's bucket (the head adds to it too), the replicated tensors, and the second gradient of
/// the token embedding.
std::int64_t alive_bytes(const StepPlan& plan);

}  // namespace rankwise
