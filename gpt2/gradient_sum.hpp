#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "common/memory/partial_sum.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// Gradient accumulation: the sum of the gradients of several micro-batches.

namespace rankwise {

/// The tensors to which a backward pass adds its gradients.
struct GradientTensors {
  Tensor flat;  ///< (n) all gradients of a table, a unit or a bucket
  Tensor tied;  ///< the head's contribution to the token embedding's gradient, if it is a separate sum; else empty
  bool unwritten = false;  ///< true if GradientLayout::products hold nothing yet: they are written, not added to
};

/// The sum over micro-batches of the gradients of n contiguous parameters.
///
/// A micro-batch is a run of sequences of the global batch. Between begin() and end() its backward pass accumulates
/// into the tensors that begin() returned:
///
///     GradientTensors g = sum.begin(sequences);
///     ... backward pass, += into model_tensors(table, g) ...
///     sum.end(sequences);
///
/// The first one after clear() does not find zeros everywhere (GradientTensors::unwritten).
///
/// Callers that already have the gradients of a micro-batch, for example because they are summed over ranks first,
/// pass them to add().
///
/// All values are sums; the division by the number of valid tokens follows after the sum over ranks.
class GradientSum {
 public:
  virtual ~GradientSum() = default;

  /// The tensors to which the backward pass of the micro-batch @p sequences adds its gradients; one micro-batch at
  /// a time.
  virtual GradientTensors begin(Range sequences) = 0;
  /// Declares that the backward pass of the micro-batch has added all its gradients to @p elements and to those
  /// after them. The caller can send them while the backward pass continues.
  /// @param elements  elements before those of the previous call; the first call's range ends with the last
  ///                  element.
  /// @return  the sums so far over @p elements, as sums() would return them after end(): one, or two when
  ///          @p elements has the last element and the tied embedding's second contribution is a separate sum.
  virtual std::vector<PartialSum> finish(Range elements) = 0;
  /// Completes the micro-batch @p sequences.
  virtual void end(Range sequences) = 0;
  /// Adds gradients that have been computed already, in place of begin() and end(). The first ones after clear() are
  /// copied where that gives the same sum.
  /// @param sequences  one micro-batch, or several that have been summed.
  /// @param gradients  (n), and the head's contribution to the token embedding's gradient if it is a separate sum;
  ///                   both have the type of the sum.
  virtual void add(Range sequences, const std::vector<Tensor>& gradients) = 0;
  /// The sums so far, one or two. The caller sums them over ranks before it calls total(), as those of finish().
  virtual std::vector<PartialSum> sums() = 0;
  /// The whole sum, (n), with the tied embedding's two contributions added, and zero for frozen tensors, which therefore
  /// do not count in its norm: that over all ranks, if they summed what sums() or finish() returned; otherwise that of
  /// the micro-batches, which begin with sequence 0 or are one subtree. To be called once per step. Error while one is
  /// missing.
  virtual Tensor total() = 0;
  /// Starts again from zero.
  virtual void clear() = 0;
};

/// Ledger category of the extra accumulators that exact arithmetic needs: sums that wait for their neighbours in
/// the tree, and the separate sum of a tied tensor's second contribution.
inline constexpr Category further_sums = Category::exact_sums;

/// Layout of the gradients in a GradientSum.
struct GradientLayout {
  std::int64_t elements = 0;    ///< n
  DType type = DType::f32;      ///< type of the gradients
  Range tied{};                 ///< elements of the token embedding's gradient; empty when it is not among them
  std::vector<Range> frozen{};  ///< elements of frozen tensors, whose sums become zero in total()
  std::vector<Range>
      products{};  ///< elements of tensors with Parameter::one_product, in order, which are not cleared
};

/// The layout of all gradients of a table.
/// @param table  a table with the embedding.
/// @param type   type of the gradients.
GradientLayout gradient_layout(const ParameterTable& table, DType type);

/// Views of the tensors to which a backward pass adds its gradients.
/// @param table  a table of all units.
ModelTensors model_tensors(const ParameterTable& table, const GradientTensors& gradients);

/// Creates a sum with one buffer and +=: micro-batches are added in the order in which they finish.
/// @param kernels  kernels on the stream of the device that @p memory belongs to.
std::unique_ptr<GradientSum> make_running_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                              const GradientLayout& layout);

/// Creates a sum in the order of tree_sum() over sequences, for micro-batches in any order: a binary counter.
///
/// A finished micro-batch waits until its neighbour in the tree is finished; the two are added and wait as one.
/// Every micro-batch is an aligned run of sequences whose number is a power of two, so it is a subtree. In the end the
/// aligned_runs() of all its sequences wait. The tied embedding's two contributions have separate buffers.
/// All buffers after the first, and the second of the tied embedding, are counted as Category::exact_sums.
std::unique_ptr<GradientSum> make_tree_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                           const GradientLayout& layout);

/// The number of buffers that make_tree_sum() needs for micro-batches in order: floor(log2(M)) + 1 for those from 0 to
/// M - 1.
/// @param micro_batches  their numbers: B sequences each, counted from sequence 0.
std::int64_t tree_buffers(Range micro_batches);

/// The sums to combine when a micro-batch finishes, for callers that accumulate gradients themselves in the order
/// of the two sums above. Sums that wait for their neighbours are stored by level.
struct MicroBatchOrder {
  std::vector<std::size_t> added;  ///< levels whose sums are added to the micro-batch, one after the other
  std::size_t level = 0;           ///< level on which the result is stored
};
/// The order for micro-batch m = 0, 1, ... of a step; after the last one the last level has the whole sum. A running sum
/// has one level; in a tree, level l has sums over 2^l micro-batches, a binary counter.
/// @param tree  true if sums are a tree over the sequences.
/// @param pass  m.
/// @param micro_batches  M, micro-batches of the step.
MicroBatchOrder micro_batch_order(bool tree, std::int64_t pass, std::int64_t micro_batches);
/// The number of levels that the micro-batches of a step need.
std::int64_t micro_batch_levels(bool tree, std::int64_t micro_batches);

}  // namespace rankwise
