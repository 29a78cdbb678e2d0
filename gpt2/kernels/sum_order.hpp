#pragma once

#include <cstdint>

#include "common/base/partition.hpp"

/// @file
/// The order in which the terms of a contraction are added.

namespace rankwise {

/// Number of leaves of a sum that tensor parallelism may split.
constexpr std::int64_t leaves_of_a_split_sum = 8;
/// Number of leaves of a sum over the tokens or the keys of a sequence, which sequence and context parallelism may split.
constexpr std::int64_t leaves_of_a_sequence = 16;

/// Number of leaves of a split sum that tensor-parallel shard @p part of a layer holds.
constexpr std::int64_t leaves_of(Part part)
{
  return leaves_of_a_split_sum % part.count == 0 ? leaves_of_a_split_sum / part.count : 1;
}

/// Number of leaves that part @p part of the tokens holds.
/// @param leaves  number of leaves of all the tokens of a sequence, or of a run of its tokens.
constexpr std::int64_t token_leaves_of(Part part, std::int64_t leaves = leaves_of_a_sequence)
{
  return leaves % part.count == 0 ? leaves / part.count : 1;
}

/// The order of the n terms of a contraction: the terms of a leaf are added one by one, and the leaves by
/// tree_sum(). The reference kernels follow it; the fast kernels add in any order.
class SumOrder {
 public:
  /// Adds term by term: for sums that no parallelism splits.
  static constexpr SumOrder sequential(std::int64_t n) { return {1, n, 1, 1}; }

  /// Divides the terms as tensor parallelism does: leaf j is the j-th shard of each of @p sections equal sections.
  /// @param n         number of terms, a multiple of @p sections.
  /// @param leaves    leaves_of() this tensor-parallel shard.
  /// @param sections  3 for the outputs of c_attn (q, k, v), else 1.
  static constexpr SumOrder split(std::int64_t n, std::int64_t leaves, std::int64_t sections = 1)
  {
    return {1, n / sections, leaves, sections};
  }

  /// A sum over the B T tokens of a micro-batch: leaf 16 b + e is sixteenth e of sequence b.
  /// @param sixteenths  number of sixteenths of a sequence in the T tokens; fewer than 16 where a rank has some of them.
  static constexpr SumOrder batch(std::int64_t B, std::int64_t T, std::int64_t sixteenths = leaves_of_a_sequence)
  {
    return {B, T, sixteenths, 1};
  }

  /// A sum over the tokens @p run of a sequence of T: the sixteenths of the sequence that they make up; one leaf if they
  /// are not whole ones.
  static constexpr SumOrder tokens(Range run, std::int64_t T)
  {
    const bool whole = run.count == T || run.count * leaves_of_a_sequence % T == 0;
    return {1, run.count, whole ? run.count * leaves_of_a_sequence / T : 1, 1};
  }

  /// A sum over B sequences of one term each.
  static constexpr SumOrder sequences(std::int64_t B) { return {B, 1, 1, 1}; }

  /// A sum over the rows that were routed to an expert: leaf i ends before row ends[i], and may be empty.
  /// @param n       number of rows.
  /// @param leaves  number of leaves.
  /// @param ends    (leaves) on the device of the kernels; outlives the order.
  static constexpr SumOrder routed(std::int64_t n, std::int64_t leaves, const std::int64_t* ends)
  {
    SumOrder order{1, n, leaves, 1};
    order.ends_ = ends;
    return order;
  }

  /// Number of leaves.
  constexpr std::int64_t leaves() const { return blocks_ * leaves_per_block_; }
  /// Number of terms.
  constexpr std::int64_t terms() const { return blocks_ * section_ * sections_; }
  /// Number of runs of terms in each leaf.
  constexpr std::int64_t runs() const { return sections_; }
  /// The terms of run @p run of leaf @p leaf.
  constexpr Range run(std::int64_t leaf, std::int64_t run) const
  {
    if (ends_ != nullptr) {
      const std::int64_t first = leaf > 0 ? ends_[leaf - 1] : 0;
      return {first, ends_[leaf] - first};
    }
    const Range in_section = Partition(section_, leaves_per_block_).shard(leaf % leaves_per_block_);
    return {(leaf / leaves_per_block_ * sections_ + run) * section_ + in_section.first, in_section.count};
  }

 private:
  constexpr SumOrder(std::int64_t blocks, std::int64_t section, std::int64_t leaves_per_block,
                     std::int64_t sections)
      : blocks_(blocks), section_(section), leaves_per_block_(leaves_per_block), sections_(sections)
  {
  }

  std::int64_t blocks_, section_, leaves_per_block_, sections_;
  const std::int64_t* ends_ = nullptr;  // ends of the leaves of routed()
};

}  // namespace rankwise
