#pragma once

#include <cstdint>
#include <string>

#include "common/base/partition.hpp"
#include "common/memory/tensor.hpp"

/// @file
/// The vectors that the lesson sums, and the comparison of two results.

namespace rankwise {

/// Writes the elements of rank @p rank's vector. Element i depends on rank and i only, so every rank can compute
/// the vectors of all ranks. Real numbers are uniform in (-1, 1), integers run from -1000 to 1000, bytes from 0 to
/// 255.
/// @param to      elements first, first + 1, ... of the vector, in host memory.
/// @param first   a multiple of 4.
void fill(const Tensor& to, int rank, std::int64_t first = 0);

/// Order in which the vectors of the ranks are added.
enum class OrderOfSums : unsigned char {
  by_rank,  ///< ((0 + 1) + 2) + 3
  tree,     ///< (0 + 1) + (2 + 3): tree_sum()
};

/// Writes the sum of the vectors of N ranks without any message: all of them are computed here. bf16 is added in
/// f32 and rounded once in the tree, or after each addition by rank.
void sum_of_ranks(const Tensor& to, int ranks, OrderOfSums order);

/// Difference of two vectors of the same type and length.
struct Difference {
  std::int64_t elements = 0;  ///< number of elements that differ
  double squared = 0;         ///< sum of the squared differences
  double norm_squared = 0;    ///< sum of the squares of the second vector
  double largest = 0;         ///< largest absolute difference

  /// Norm of the difference over the norm of the second vector; 0 if they are equal.
  double relative() const;
};

/// Compares element by element.
Difference difference(const Tensor& a, const Tensor& b);

/// Bound on the difference of two sums of N elements of (-1, 1) in different orders: 2 N (N-1) roundings of the
/// type.
double rounding_bound(DType type, int ranks);

/// SHA-256 of the elements.
std::string digest_of(const Tensor& values);

}  // namespace rankwise
