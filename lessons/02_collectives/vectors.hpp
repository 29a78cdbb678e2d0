#pragma once

#include <cstdint>
#include <string>

#include "common/base/partition.hpp"
#include "common/memory/tensor.hpp"

/// @file
/// The vectors that the lesson adds up, and how two results are compared.

namespace rankwise {

/// Writes the elements of rank @p rank's vector: element i depends on rank and i only, so that every rank knows what all
/// the others have. Real numbers are uniform in (-1, 1), whole numbers run from -1000 to 1000, bytes from 0 to 255.
/// @param to      elements first, first + 1, ... of the vector, in the host's memory.
/// @param first   a multiple of 4.
void fill(const Tensor& to, int rank, std::int64_t first = 0);

/// In which order the ranks' elements are added to each other.
enum class OrderOfSums : unsigned char {
  by_rank,  ///< ((0 + 1) + 2) + 3
  tree,     ///< (0 + 1) + (2 + 3): tree_sum()
};

/// Writes the sum of the vectors of N ranks, which are computed here: no message is sent. bf16 is added in f32; it is
/// rounded once in the tree, and after each addition by rank.
void sum_of_ranks(const Tensor& to, int ranks, OrderOfSums order);

/// How two vectors of the same type and length differ.
struct Difference {
  std::int64_t elements = 0;  ///< how many differ
  double squared = 0;         ///< sum of their squared differences
  double norm_squared = 0;    ///< sum of the squares of the second
  double largest = 0;         ///< absolute difference

  /// The norm of the difference over the norm of the second; 0 when both are equal.
  double relative() const;
};

/// Compares element by element.
Difference difference(const Tensor& a, const Tensor& b);

/// How far two sums of N elements of (-1, 1) in different orders may be apart: N (N-1) roundings of the type, twice.
double rounding_bound(DType type, int ranks);

/// SHA-256 over the elements.
std::string digest_of(const Tensor& values);

}  // namespace rankwise
