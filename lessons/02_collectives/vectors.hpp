#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/memory/tensor.hpp"

/// @file
/// The vectors that the lesson sums, and the comparison of two results.

namespace rankwise {

/// Writes the elements of rank @p rank's vector. Element i depends on rank and i only, so every rank can compute
/// the vectors of all ranks. Real numbers are uniform in (-1, 1), integers run from -1000 to 1000, bytes from 0 to
/// 255.
/// @param to      elements first, first + 1, ... of the vector, in host memory.
/// @param first   >= 0.
void fill(const Tensor& to, int rank, std::int64_t first = 0);

/// Writes the sums of the vectors of N ranks without any message: all of them are computed here. bf16 is added in
/// f32 and rounded once in the tree, or after each addition by rank.
/// @param by_rank  ((0 + 1) + 2) + 3.
/// @param by_tree  (0 + 1) + (2 + 3): tree_sum().
void sum_of_ranks(const Tensor& by_rank, const Tensor& by_tree, int ranks);

/// Elements of a rank's blocks in an all-to-all of uneven blocks: number k of n (k+1)(k+2) / (N (N+1)) less the one
/// before it, where k = (rank + other) mod N. So the block for a rank is as large as the one from it, each rank sends
/// and receives n elements, and in short vectors some blocks are empty.
/// @return  (N) numbers, by the other rank.
std::vector<std::int64_t> uneven_blocks(std::int64_t n, int ranks, int rank);

/// Difference of two vectors of the same type and length.
struct Difference {
  std::int64_t elements = 0;  ///< number of elements that differ
  double squared = 0;         ///< sum of the squared differences
  double norm_squared = 0;    ///< sum of the squares of the second vector
  double largest = 0;         ///< largest absolute difference

  /// Norm of the difference over the norm of the second vector; 0 if they are equal.
  double relative() const { return squared == 0 ? 0 : std::sqrt(squared / norm_squared); }
};

/// Compares element by element.
Difference difference(const Tensor& a, const Tensor& b);

/// Bound on the difference of two sums of N elements of (-1, 1) in different orders: 2 N (N-1) roundings of the
/// type.
double rounding_bound(DType type, int ranks);

}  // namespace rankwise
