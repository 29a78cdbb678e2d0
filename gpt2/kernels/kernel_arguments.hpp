#pragma once

#include <cstdint>

#include "common/base/partition.hpp"
#include "common/memory/tensor.hpp"
#include "gpt2/config.hpp"
#include "gpt2/random.hpp"

/// @file
/// Arguments of kernels besides tensors: matrices inside of them, rows, masks, shapes, constants. Letters as in
/// kernels.hpp.

namespace rankwise {

/// A matrix inside a tensor: element (i, j) is at i row_stride + j column_stride.
struct Matrix {
  Tensor data;                     ///< the elements, beginning with (0, 0)
  std::int64_t rows = 0;           ///< extent of i
  std::int64_t columns = 0;        ///< extent of j
  std::int64_t row_stride = 0;     ///< elements between (i, j) and (i+1, j)
  std::int64_t column_stride = 1;  ///< elements between (i, j) and (i, j+1)

  /// The matrix with @p rows rows that @p tensor holds in row-major order.
  static Matrix of(const Tensor& tensor, std::int64_t rows)
  {
    const std::int64_t columns = rows > 0 ? tensor.elements() / rows : 0;
    return {tensor, rows, columns, columns, 1};
  }
  /// The matrix with rows and columns exchanged.
  Matrix transposed() const { return {data, columns, rows, column_stride, row_stride}; }
};

/// A matrix with elements of type T, for kernels that read or write them one by one.
template <class T>
struct TypedMatrix {
  /// @param matrix  a matrix whose tensor has elements of type T.
  explicit TypedMatrix(const Matrix& matrix)
      : first(matrix.data.data<T>()), row_stride(matrix.row_stride), column_stride(matrix.column_stride)
  {
  }
  /// Element (i, j).
  constexpr T& operator()(std::int64_t i, std::int64_t j) const
  {
    return first[i * row_stride + j * column_stride];
  }

  T* first;                    ///< element (0, 0)
  std::int64_t row_stride;     ///< as in Matrix
  std::int64_t column_stride;  ///< as in Matrix
};

/// The tokens that the rows of an activation stand for: (sequence, token) pairs, sequence by sequence.
struct Rows {
  Range sequences{};  ///< sequences of the global batch; count = B
  Range tokens{};     ///< tokens of each sequence; count = T without sequence parallelism

  /// Number of rows.
  constexpr std::int64_t count() const { return sequences.count * tokens.count; }
};

/// A dropout mask, drawn from Philox keyed by position, so that it is the same on every layout.
struct Dropout {
  double rate = 0;         ///< probability that an element becomes zero; the others are divided by 1 - rate
  std::uint32_t seed = 0;  ///< seed of the run
  std::int64_t step = 0;   ///< optimizer step
  std::int64_t layer = 0;  ///< unit of the parameter table
  Purpose purpose{};       ///< one of the layer's dropouts
  Rows rows{};             ///< rows that the mask is for

  /// True if anything is dropped.
  constexpr bool active() const { return rate > 0; }
};

/// Shape and mask of one attention layer.
struct AttentionShape {
  std::int64_t B = 0;  ///< sequences
  std::int64_t T = 0;  ///< tokens per sequence
  Range heads{};       ///< heads of this tensor-parallel shard, of all H
  std::int64_t D = 0;  ///< channels per head
  Mask mask{};         ///< keys that a query sees
  Tensor lengths{};    ///< (B) i32: tokens of each sequence before its padding, at least 1; empty: all T
};

/// The tokens of each sequence whose queries, and those whose keys and values, a kernel of attention computes with.
struct AttentionRuns {
  Range queries{};  ///< positions of the queries in the sequence
  Range keys{};     ///< positions of the keys and values
};

/// A soft-max over some of the keys that each query of a run sees, before the division: two of them merge into that
/// over the keys of both. All three have the accumulator type.
struct SoftmaxPartial {
  Tensor maximum;  ///< (B, heads, queries) largest score
  Tensor sum;      ///< (B, heads, queries) sum over the keys of exp(score - maximum); 0 where a query sees none
  Tensor output;   ///< (B queries, D heads) sum over the keys of factor exp(score - maximum) v
};

/// Constants of one AdamW update.
struct AdamWStep {
  double learning_rate = 0;   ///< learning rate of this step
  double beta1 = 0.9;         ///< decay of the first moment
  double beta2 = 0.95;        ///< decay of the second moment
  double epsilon = 1e-8;      ///< added to the root
  double weight_decay = 0;    ///< weight decay; 0 for parameters that do not decay
  double gradient_scale = 1;  ///< factor of the gradients: the clipping factor over the number of valid tokens
  std::int64_t number = 1;    ///< number of the update, from 1; for the bias correction of the moments
};

/// The epsilon that layer norm adds to the variance.
constexpr double norm_epsilon = 1e-5;

}  // namespace rankwise
