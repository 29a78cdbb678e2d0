#pragma once

#include <cstdint>

#include "gpt2/kernels/kernels.hpp"

/// @file
/// Access of all families to the logits of a softmax, on the host and on a GPU.

namespace rankwise {

/// The logits of R rows, and the statistics of each row.
template <class T>
struct LogitRows {
  /// @param logits   (R, stored V).
  /// @param maximum  (R) in the accumulator type; also an output.
  /// @param sum      (R) in the accumulator type; also an output.
  /// @param targets  (R) i32, -1 where nothing is counted.
  /// @param entries  the vocabulary entries of this shard, without padding.
  LogitRows(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets, Range entries)
      : first(logits.data<T>()),
        maxima(maximum.data<Accumulator<T>>()),
        sums(sum.data<Accumulator<T>>()),
        target(targets.data<std::int32_t>()),
        vocabulary(entries),
        R(targets.elements()),
        V(R > 0 ? logits.elements() / R : 0)
  {
  }
  /// The first logit of row @p r.
  constexpr T* row(std::int64_t r) const { return first + r * V; }
  /// The target's logit, which is zero on all shards but the one that has the target: so the sum over shards is it.
  constexpr Accumulator<T> target_logit(std::int64_t r) const
  {
    if (!vocabulary.contains(target[r])) return 0;
    return static_cast<Accumulator<T>>(row(r)[target[r] - vocabulary.first]);
  }

  T* first;                    ///< the first logit of all
  Accumulator<T>* maxima;      ///< (R)
  Accumulator<T>* sums;        ///< (R)
  const std::int32_t* target;  ///< (R)
  Range vocabulary;            ///< vocabulary entries of this shard, without padding
  std::int64_t R;              ///< rows
  std::int64_t V;              ///< logits of a row, with padding
};

}  // namespace rankwise
