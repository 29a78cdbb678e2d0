#include <cstring>
#include <vector>

#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

namespace {

constexpr int tile_rows = 4;

/// Sums of the outputs that are computed side by side: tile_rows rows of one block of columns.
template <class A>
struct Tile {
  std::array<Lanes<A, lane_count>, tile_rows> row;

  friend Tile operator+(const Tile& a, const Tile& b)
  {
    Tile sum;
    for (std::size_t i = 0; i < tile_rows; ++i) sum.row[i] = a.row[i] + b.row[i];
    return sum;
  }
};

/// Copies the columns of b in one block, widened: panel[k
/// lane_count + w] = b[k, first + w]; missing columns are zero.
template <class T>
void pack(std::vector<Accumulator<T>>& panel, const TypedMatrix<T>& b, ColumnBlock block, std::int64_t terms)
{
  for (std::int64_t k = 0; k < terms; ++k)
    for (int w = 0; w < lane_count; ++w)
      panel[static_cast<std::size_t>(k * lane_count + w)] =
          w < block.count ? widen(b(k, block.first + w)) : Accumulator<T>{};
}

/// Adds the terms @p terms of tile_rows rows of a times a packed panel of b to @p sum.
template <class T, class A = Accumulator<T>>
void add_terms(Tile<A>& sum, const std::array<const T*, tile_rows>& row, std::int64_t stride, const A* panel,
               Range terms)
{
  using Vector [[gnu::vector_size(lane_count * sizeof(A))]] = A;  // one operation on all lanes, in g++ and clang
  Vector at[tile_rows], b;
  std::memcpy(at, sum.row.data(), sizeof at);
  for (std::int64_t k = terms.first; k < terms.end(); ++k) {
    std::memcpy(&b, panel + k * lane_count, sizeof b);
    for (std::size_t i = 0; i < tile_rows; ++i) at[i] += widen(row[i][k * stride]) * b;
  }
  std::memcpy(sum.row.data(), at, sizeof at);
}

/// The sums of one tile: rows first_row ... of a times a packed
/// panel of b. Beyond last_row the last row is repeated.
template <class T, class A = Accumulator<T>>
Tile<A> tile_sums(const TypedMatrix<T>& a, std::int64_t first_row, std::int64_t last_row, const A* panel,
                  const SumOrder& order)
{
  std::array<const T*, tile_rows> row;
  for (std::size_t i = 0; i < tile_rows; ++i)
    row[i] = &a(std::min(first_row + static_cast<std::int64_t>(i), last_row), 0);
  return stacked_sum(order.leaves(), [&](std::int64_t leaf) {
    Tile<A> sum{};
    for (std::int64_t run = 0; run < order.runs(); ++run)
      add_terms<T>(sum, row, a.column_stride, panel, order.run(leaf, run));
    return sum;
  });
}

/// Computes the same bits as plain_matmul(); blocks of columns are divided among threads.
template <class O, class T>
void multiply_tiles(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
                    bool accumulate)
{
  using A = Accumulator<T>;
  const TypedMatrix<O> to(out);
  const TypedMatrix<T> left(a), right(b);
  const T* const shift = bias.data<T>();
#pragma omp parallel
  {
    std::vector<A> panel(static_cast<std::size_t>(a.columns * lane_count));
#pragma omp for
    for (std::int64_t j = 0; j < column_blocks(out.columns); ++j) {
      const ColumnBlock block = column_block(j, out.columns);
      // The columns of b are packed once and used for all rows of a.
      pack(panel, right, block, a.columns);
      for (std::int64_t i = 0; i < out.rows; i += tile_rows) {
        const Tile<A> sums = tile_sums(left, i, out.rows - 1, panel.data(), order);
        for (std::int64_t r = i; r < std::min<std::int64_t>(i + tile_rows, out.rows); ++r)
          for (int w = 0; w < block.count; ++w) {
            O& element = to(r, block.first + w);
            A sum = sums.row[static_cast<std::size_t>(r - i)].at[static_cast<std::size_t>(w)];
            if (shift) sum += widen(shift[block.first + w]);
            element = O(accumulate ? widen(element) + sum : sum);
          }
      }
    }
  }
}

}  // namespace

void ReferenceKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order,
                              const Tensor& bias, bool accumulate) const
{
  with_matmul_types(out, a, b, order,
                    [&]<class O, class T>(O, T) { multiply_tiles<O, T>(out, a, b, order, bias, accumulate); });
}

void ReferenceKernels::bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const
{
  // forward:   y[i, j] = x[i, j] + bias[j]
  // gradient:  dbias[j] += sum over i of dy[i, j]
  with_real_type(dy.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const T* const from = dy.data<T>();
    const GradientAccumulator<A> to(dbias);
    const std::int64_t n = dbias.elements();
#pragma omp parallel for
    for (std::int64_t j = 0; j < column_blocks(n); ++j) {
      const ColumnBlock block = column_block(j, n);
      const auto sums = sum_rows<A>(
          order, block, [&](std::int64_t r, std::int64_t column) { return widen(from[r * n + column]); });
      for (int w = 0; w < block.count; ++w) to[block.first + w] += sums.at[static_cast<std::size_t>(w)];
    }
  });
}

}  // namespace rankwise
