#pragma once

#include <memory>
#include <vector>

#include "gpt2/arithmetic.hpp"

/// @file
/// The gradients of a rank's experts, to which the rows of e ranks contribute.

namespace rankwise {

/// The sum of the gradients of a rank's experts over the micro-batches of e ranks.
///
/// In micro-batch m, rank q of the group computes sequences [q share + m B, + B) of the group. These e runs are not
/// adjacent if a step has several micro-batches. So in exact arithmetic each rank's rows have a sum of their own, a
/// tree over its share of the sequences, and total() continues the tree over the ranks.
class ExpertGradients {
 public:
  /// @param kernels, stream, memory  outlive it.
  /// @param layout  gradients of the experts of this rank.
  /// @param group   this rank's number in its group, and e.
  /// @param share   sequences of a step that each rank computes.
  ExpertGradients(const Arithmetic& arithmetic, const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                  const GradientLayout& layout, Part group, std::int64_t share);

  /// Begins a micro-batch of the group, of which this rank computes @p own.
  void begin(Range own);
  /// (n) the gradients to which the rows of rank @p rank are added.
  const Tensor& of(std::int64_t rank) const { return open_[static_cast<std::size_t>(rank)]; }
  /// Ends the micro-batch.
  void end(Range own);
  /// (n) the sum over all micro-batches of the group. To be called once per step.
  Tensor total();
  /// Starts again from zero.
  void clear();

  /// Bytes by category, for M micro-batches a step and e ranks.
  static CategoryBytes bytes(const Arithmetic& arithmetic, const GradientLayout& layout, std::int64_t M,
                             std::int64_t e);

 private:
  Range of_rank(Range own, std::int64_t rank) const;

  const Kernels& kernels_;
  Part group_;
  std::int64_t share_;
  std::vector<std::unique_ptr<GradientSum>> sums_;  // one, or one for each rank
  std::vector<Tensor> open_;                        // by rank
};

}  // namespace rankwise
