#include <algorithm>
#include <span>
#include <type_traits>
#include <vector>

#include "gpt2/kernels/exact/exact.hpp"
#include "gpt2/kernels/exact/packing.hpp"
#include "gpt2/kernels/exact/segments.hpp"

namespace rankwise {

namespace {

/// Terms that are packed at a time: a tile's factors stay in the second cache.
constexpr std::int64_t most_terms = 1024;
/// Outputs for which they are packed at a time.
constexpr std::int64_t block_rows = 85 * tile_rows, block_columns = 32 * tile_columns;

/// Copies the terms of @p segment of some columns of b side by side: to[k width + w] = b[k, columns.first + w]. Columns that
/// are missing have any numbers.
template <class T>
void pack(float* to, std::int64_t width, const TypedMatrix<T>& b, const Segment& segment, Range columns)
{
  constexpr std::int64_t share = 64;  // terms whose packed columns fit into the first cache
  for (const Range& terms : segment.terms)
    for (std::int64_t first = terms.first; first < terms.end(); first += share) {
      const std::int64_t count = std::min(share, terms.end() - first);
      if (b.row_stride == 1)
        pack_columns(to, width, columns.count, count, [&](std::int64_t w) { return &b(first, columns.first + w); });
      else
        pack_rows(to, width, count, columns.count, [&](std::int64_t k) { return &b(first + k, columns.first); });
      to += count * width;
    }
}

/// The rows of a that a tile holds, and the columns of b.
struct TileRange {
  Range rows, columns;
};

/// Writes the sums of a tile, plus the bias and what is there already if they are asked for, rounded once.
template <class O, class T>
void store(const TypedMatrix<O>& out, const TileRange& tile, const float* sums, const T* bias, bool accumulate)
{
  for (std::int64_t r = 0; r < tile.rows.count; ++r)
    for (std::int64_t w = 0; w < tile.columns.count; ++w) {
      O& element = out(tile.rows.first + r, tile.columns.first + w);
      float sum = sums[r * tile_columns + w] + 0;
      if (bias != nullptr) sum += widen(bias[tile.columns.first + w]);
      element = O(accumulate ? widen(element) + sum : sum);
    }
}

/// A product of matrices in tiles, with the bits of the reference.
template <class O, class T>
class TiledProduct {
 public:
  TiledProduct(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, AlignedFloats& scratch)
      : segments_(segments_of(order, most_terms)),
        out_(out),
        left_(a.transposed()),
        right_(b),
        rows_(out.rows),
        columns_(out.columns)
  {
    const std::int64_t length = segments_.front().count;
    const std::int64_t groups = (std::min(rows_, block_rows) + tile_rows - 1) / tile_rows;
    const std::int64_t panels = (std::min(columns_, block_columns) + tile_columns - 1) / tile_columns;
    for (const Segment& segment : std::span(segments_).first(segments_.size() - 1))
      most_waiting_ = std::max<std::int64_t>(most_waiting_, segment.waiting_after());
    const std::int64_t left_floats = groups * tile_rows * length, right_floats = panels * tile_columns * length;
    left_packed_ = scratch.reserve(left_floats + right_floats + groups * panels * most_waiting_ * tile_floats);
    right_packed_ = left_packed_ + left_floats;
    waiting_ = right_packed_ + right_floats;
  }

  /// Computes all of @p out; divides tiles among threads.
  void compute(const T* bias, bool accumulate) const
  {
#pragma omp parallel
    for (std::int64_t i = 0; i < rows_; i += block_rows)
      for (std::int64_t j = 0; j < columns_; j += block_columns)
        for (const Segment& segment : segments_)
          compute(segment, {i, std::min(block_rows, rows_ - i)}, {j, std::min(block_columns, columns_ - j)}, bias,
                  accumulate);
  }

 private:
  /// Adds the terms of one segment to the tiles of one block, by all threads.
  void compute(const Segment& segment, Range rows, Range columns, const T* bias, bool accumulate) const
  {
    const std::int64_t groups = (rows.count + tile_rows - 1) / tile_rows;
    const std::int64_t panels = (columns.count + tile_columns - 1) / tile_columns;
    const auto tile_at = [&](std::int64_t group, std::int64_t panel) {
      return TileRange{intersect(rows, {rows.first + group * tile_rows, tile_rows}),
                       intersect(columns, {columns.first + panel * tile_columns, tile_columns})};
    };
#pragma omp for nowait
    for (std::int64_t group = 0; group < groups; ++group)
      pack(left_packed_ + group * tile_rows * segment.count, tile_rows, left_, segment, tile_at(group, 0).rows);
#pragma omp for
    for (std::int64_t panel = 0; panel < panels; ++panel)
      pack(right_packed_ + panel * tile_columns * segment.count, tile_columns, right_, segment,
           tile_at(0, panel).columns);

    const bool last = &segment == &segments_.back();
#pragma omp for collapse(2)
    for (std::int64_t panel = 0; panel < panels; ++panel)
      for (std::int64_t group = 0; group < groups; ++group) {
        const TileRange tile = tile_at(group, panel);
        alignas(64) float places[most_places * tile_floats];
        float* const waiting = waiting_ + (panel * groups + group) * most_waiting_ * tile_floats;
        std::copy_n(waiting, segment.waiting_before() * tile_floats, places);
        sum_tiles({left_packed_ + group * tile_rows * segment.count, tile_rows, 1,
                   right_packed_ + panel * tile_columns * segment.count, tile_columns},
                  tile.rows.count, tile.columns.count, segment.pieces, {places, tile_columns, tile_floats});
        if (last)
          store(out_, tile, places, bias, accumulate);
        else
          std::copy_n(places, segment.waiting_after() * tile_floats, waiting);
      }
  }

  static constexpr int most_places = 33;  // of the tree over 2^32 leaves

  std::vector<Segment> segments_;
  TypedMatrix<O> out_;
  TypedMatrix<T> left_, right_;  // the transpose of a, and b: both have the terms as rows
  std::int64_t rows_, columns_, most_waiting_ = 0;
  float *left_packed_, *right_packed_, *waiting_;
};

}  // namespace

void ExactKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order,
                          const Tensor& bias, bool accumulate) const
{
  with_matmul_types(out, a, b, order, [&]<class O, class T>(O, T) {
    if constexpr (std::is_same_v<T, double>)  // for tests
      ReferenceKernels::matmul(out, a, b, order, bias, accumulate);
    else
      TiledProduct<O, T>(out, a, b, order, scratch_).compute(bias.data<T>(), accumulate);
  });
}

}  // namespace rankwise
