#pragma once

#include <cstdint>

#include "common/collectives/collectives.hpp"
#include "common/memory/device.hpp"
#include "common/messages/group.hpp"
#include "common/program/time_ledger.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The messages between tensor-parallel ranks: Megatron-LM's operators f and g.

namespace rankwise {

/// The messages of rows, (R, C), that t tensor-parallel ranks exchange around the divided layers.
///
/// Without sequence parallelism every rank has all rows between the divided layers, and a sum is one all-reduce.
/// With it a rank has R / t rows, T / t tokens of each sequence: a sum is the first half of the all-reduce, a
/// reduce-scatter, and an all-gather, the second half, comes before the next divided layer. In both collectives a
/// shard is what one rank has of all sequences, so rows are reordered for the message:
///
///     rows       [ sequence 0: rank 0 | rank 1 ][ sequence 1: rank 0 | rank 1 ]
///     messages   [ rank 0: sequence 0 | sequence 1 ][ rank 1: sequence 0 | sequence 1 ]
///
/// @source  Shoeybi et al. 2019, section 3, operators f and g; Korthikanti et al. 2022, section 4.2.2, where these
///          are f and f-bar, and g and g-bar with sequence parallelism.
class TensorParallelMessages {
 public:
  /// @param group     the t ranks.
  /// @param shape     of a micro-batch.
  /// @param channels  C.
  /// @param work      has a buffer for rows that are gathered again.
  /// @param kernels   of the group's device.
  /// @param time      where waiting is counted. All arguments outlive this object.
  TensorParallelMessages(Group& group, const ActivationShape& shape, std::int64_t channels, const Workspace& work,
                         const Kernels& kernels, TimeLedger& time);

  /// Adds up the ranks' partial sums: g in the forward pass, f in the backward pass.
  /// @param partial  (R, C) on each rank; undefined afterwards.
  /// @return         (R, C), or this rank's rows (R / t, C); valid until the next message.
  Tensor sum(const Tensor& partial);
  /// Gathers the rows of all ranks: f in the forward pass, g in the backward pass. Without sequence parallelism
  /// nothing is sent, and @p own is returned.
  /// @param own  (R / t, C) of this rank.
  /// @param all  (R, C) for the result; may overlap @p own.
  Tensor gather(const Tensor& own, const Tensor& all);
  /// This rank's rows of rows that every rank has. Nothing is sent.
  /// @param all  (R, C).
  /// @return     (R / t, C), valid until the next message; without sequence parallelism @p all.
  Tensor own_of(const Tensor& all);
  /// Replaces numbers, one a row, by their maxima over all ranks. @param values (R).
  void largest(const Tensor& values);
  /// Replaces numbers, one a row, by their sums over all ranks. @param values (R).
  void sum_numbers(const Tensor& values);

  /// Activations for normalise(), which writes this rank's rows to where they are gathered from.
  template <class A>
  A own(A kept) const
  {
    kept.normalised = own_normalised(kept.normalised);
    return kept;
  }
  /// Activations for a divided layer, with the normalised rows of all ranks.
  template <class A>
  A gathered(A kept)
  {
    kept.normalised = gather(own_normalised(kept.normalised), shape_.regather ? work_.gathered : kept.normalised);
    return kept;
  }
  /// The same in the backward pass; nothing is sent unless the rows were not kept (--regather).
  template <class A>
  A regathered(const A& kept)
  {
    return shape_.regather ? gathered(kept) : kept;
  }

  /// Bytes that this object allocates for messages.
  static std::int64_t bytes(const ActivationShape& shape, std::int64_t channels);

 private:
  bool divides_rows() const { return shape_.tokens.count > 1; }
  Tensor own_normalised(const Tensor& kept) const;
  Tensor own_rows() const;
  template <class Copy>
  void for_each_run(const Tensor& rows, Copy&& copy) const;

  Group& group_;
  ActivationShape shape_;
  std::int64_t channels_;
  const Workspace& work_;
  const Kernels& kernels_;
  TimeLedger& time_;
  Buffer rows_;     // (R, C) in the order of messages; only with sequence parallelism
  Buffer numbers_;  // (t, R); only if t > 1
};

}  // namespace rankwise
