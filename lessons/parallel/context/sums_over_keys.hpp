#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gpt2/kernels/kernels.hpp"
#include "lessons/parallel/context/context_attention.hpp"

/// @file
/// Partial results of a run of queries over the runs of keys so far.

namespace rankwise {

/// Results of one run of queries over runs of keys, which arrive in the order of the ring. In fast arithmetic each is
/// combined at once with the sum of the earlier ones. Exact arithmetic must not depend on it: it keeps all 2 c
/// results, and combines them in the tree when the last one is there.
class SumsOverKeys {
 public:
  /// Adds one result to another.
  using Combine = std::function<void(const SoftmaxPartial& into, const SoftmaxPartial& from)>;

  /// @param run   outlives it.
  /// @param runs  2 c, the most results.
  SumsOverKeys(const Run& run, std::int64_t runs);

  /// Begins again.
  void begin() { arrived_ = 0; }
  /// Where the result over a run of keys is to be written, before it is added().
  const SoftmaxPartial& next(std::int64_t key_run) const;
  /// The result is there.
  void added(const Combine& combine);
  /// The result over all keys.
  const SoftmaxPartial& total(const Combine& combine) const;

  /// Number of results that are kept at a time: 2, or 2 c in exact arithmetic.
  static std::int64_t kept(const Arithmetic& arithmetic, std::int64_t runs);
  /// Bytes of a result in the accumulator type: R (C + 2 H) numbers, of the heads of this rank.
  static std::int64_t bytes_of_result(const ModelConfig& config, const ActivationShape& shape);

 private:
  bool keeps_all_;
  std::int64_t arrived_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<SoftmaxPartial> results_;
};

}  // namespace rankwise
