#pragma once

#include <cstdint>

#include "common/collectives/collectives.hpp"
#include "common/memory/device.hpp"
#include "common/messages/group.hpp"
#include "common/program/time_ledger.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// What brings the parts of a divided model together.

namespace rankwise {

/// The messages of the ranks that divide a model among them, of rows (R, C).
///
/// Without sequence parallelism every rank has all rows between the divided layers, and a sum is one all-reduce. With it a
/// rank has R / t of them, T / t tokens of each sequence: a sum is the all-reduce's first half, and before the next divided
/// layer comes its second half. The shards of those two are what a rank has of all sequences, so rows change places on
/// the way:
///
///     rows       [ sequence 0: part 0 | part 1 ][ sequence 1: part 0 | part 1 ]
///     messages   [ part 0: sequence 0 | sequence 1 ][ part 1: sequence 0 | sequence 1 ]
///
/// @source  Korthikanti et al. 2022, section 4.2.2, the operators f, f-bar, g and g-bar.
class TensorParallelMessages {
 public:
  /// @param group     the t ranks.
  /// @param shape     of a micro-batch.
  /// @param channels  C.
  /// @param work      has room for rows that are gathered again.
  /// @param kernels   of the group's device.
  /// @param time      where waiting is counted. All that is given outlives this.
  TensorParallelMessages(Group& group, const ActivationShape& shape, std::int64_t channels, const Workspace& work,
                         const Kernels& kernels, TimeLedger& time);

  /// The sum of the parts' partial sums.
  /// @param partial  (R, C) on each rank; used up.
  /// @return         (R, C), or the rows (R / t, C) of this part, until the next message.
  Tensor sum(const Tensor& partial);
  /// All rows, of which each part has some; without sequence parallelism @p own itself.
  /// @param own  (R / t, C) of this part.
  /// @param all  (R, C) where they are put together; may overlap @p own.
  Tensor gather(const Tensor& own, const Tensor& all);
  /// Replaces numbers, one a row, by the largest of all parts. @param values (R).
  void largest(const Tensor& values);
  /// Replaces numbers, one a row, by their sums over all parts. @param values (R).
  void sum_numbers(const Tensor& values);

  /// Activations as normalise() wants them: its rows go where they are gathered from, if they are gathered and not kept.
  template <class A>
  A own(A kept) const
  {
    kept.normalised = own_normalised(kept.normalised);
    return kept;
  }
  /// Activations as a divided layer wants them: with the normalised rows of all parts.
  template <class A>
  A gathered(A kept)
  {
    kept.normalised = gather(own_normalised(kept.normalised), shape_.regather ? work_.gathered : kept.normalised);
    return kept;
  }
  /// The same in the backward pass: where all of them were kept nothing is sent.
  template <class A>
  A regathered(const A& kept)
  {
    return shape_.regather ? gathered(kept) : kept;
  }

  /// Bytes that this keeps for messages.
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
  Buffer rows_;     // (R, C) in the order of messages; only where rows are divided
  Buffer numbers_;  // (t, R); only where there are several parts
};

}  // namespace rankwise
