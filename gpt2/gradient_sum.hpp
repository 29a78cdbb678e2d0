#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// The sum of the gradients of several micro-batches.

namespace rankwise {

/// What a backward pass adds its gradients to.
struct GradientTensors {
  Tensor flat;  ///< (n) all gradients of a table, a unit or a bucket
  Tensor tied;  ///< what the head adds to the token embedding's gradient, if that is kept apart; else empty
};

/// The sum over micro-batches of the gradients of n parameters that lie together.
///
/// A micro-batch is a run of sequences of the global batch. Between begin() and end() its backward pass accumulates
/// into the tensors that begin() gave:
///
///     GradientTensors g = sum.begin(sequences);
///     ... backward pass, += into g ...
///     sum.end(sequences);
///
/// Whoever has the gradients of a micro-batch already, as where they are added up over ranks first, gives them to add().
///
/// Everything stays a sum; the division by the number of valid tokens comes after it has been added up over ranks too.
class GradientSum {
 public:
  virtual ~GradientSum() = default;

  /// Where the backward pass of the micro-batch @p sequences adds its gradients; one micro-batch at a time.
  virtual GradientTensors begin(Range sequences) = 0;
  /// The backward pass of the micro-batch has added all that it adds to these elements, and to those behind them: their
  /// sums so far, one tensor; or two, where the tied embedding's second contribution is kept apart, with the last element.
  /// They are what sums() would give, some time before end(): for whoever sends them while the pass goes on.
  /// @param elements  each call in front of the one before; the last one ends with the last element.
  virtual std::vector<Tensor> finish(Range elements) = 0;
  /// The micro-batch @p sequences has been added.
  virtual void end(Range sequences) = 0;
  /// begin(), += @p gradients, and end(); the first ones after clear() are copied where that gives the same sum.
  /// @param sequences  one micro-batch, or several that have been added up.
  /// @param gradients  (n); and what the head adds to the token embedding's, if that is kept apart. Of the sum's type.
  virtual void add(Range sequences, const std::vector<Tensor>& gradients) = 0;
  /// The sums so far, one tensor or two; what is to be added up over ranks. Error while a neighbour is missing.
  virtual std::vector<Tensor> sums() = 0;
  /// The whole sum, (n): sums(), with the tied embedding's two contributions added. To be called once a step.
  virtual Tensor total() = 0;
  /// Starts again from zero.
  virtual void clear() = 0;
};

/// As what the memory of sums is counted that one sum of the whole global batch would not need: those that wait for their
/// neighbours, and those of a tied tensor's second gradient.
inline constexpr Category further_sums = Category::exact_sums;

/// What a GradientSum adds up.
struct GradientLayout {
  std::int64_t elements = 0;  ///< n
  DType type = DType::f32;    ///< of the gradients
  Range tied{};               ///< where the token embedding's gradient lies among them; empty when it does not
};

/// All gradients of a table.
/// @param table  has the embedding.
/// @param type   of the gradients.
GradientLayout gradient_layout(const ParameterTable& table, DType type);

/// One buffer and +=: the order of the sum is that in which micro-batches come.
/// @param kernels  add on the stream of the device that @p memory is of.
std::unique_ptr<GradientSum> make_running_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                              const GradientLayout& layout);

/// The sum in the order of tree_sum() over sequences, in whatever order micro-batches come: a binary counter.
///
/// A finished micro-batch waits until its neighbour in the tree is there; the two are added and wait as one. Every
/// micro-batch is an aligned run of a power of two of sequences, so it is a subtree. Micro-batches that come in order
/// need log2(M) + 1 buffers for M of them. The tied embedding's two contributions are kept in two buffers.
/// Buffers beyond the first, and the second of the tied embedding, are counted as Category::exact_sums.
std::unique_ptr<GradientSum> make_tree_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                           const GradientLayout& layout);

/// Where the sum of a pass goes, for whoever adds up passes itself as these two do. Sums that wait lie on levels.
struct MicroBatchOrder {
  std::size_t added = 0;  ///< the sums on so many levels, from the lowest up, are added to the pass
  std::size_t level = 0;  ///< on which what that gives waits
};
/// The place of pass m = 0, 1, ... of a step: after the last one its level has the whole sum. In a running sum all is on one
/// level; in a tree level l has sums over 2^l passes, a binary counter.
/// @param tree  whether sums are a tree over the sequences.
MicroBatchOrder micro_batch_order(bool tree, std::int64_t pass);
/// The levels that the passes of a step need.
std::int64_t micro_batch_levels(bool tree, std::int64_t micro_batches);

}  // namespace rankwise
