#include "gpt2/kernels/cuda/column_sums.hpp"
#include "gpt2/kernels/cuda/packs.hpp"

namespace rankwise {

namespace {

/// The partial sums of a block: 32 N columns, for each of its Y rows of threads.
template <int N, int Y>
struct ColumnTile {
  static constexpr int columns = warp_threads * N;  // columns of the block

  float sum[Y][N][warp_threads];
};

/// to[slice, j] = or += sum over the rows r of one slice, those with floor(r / Y) mod slices = slice.
///
/// Block (i, slice): 32 N columns. Thread (y, x): N neighbouring columns, every (Y slices)-th row, so that a warp
/// reads contiguous memory. Reads the matrix once.
template <int N, int Y, class To, class From>
__global__ void __launch_bounds__(warp_threads* Y)
    sum_rows(To* to, const From* from, std::int64_t rows, std::int64_t columns, bool accumulate)
{
  using Tile = ColumnTile<N, Y>;
  auto& tile = shared_memory<Tile>();
  const unsigned x = threadIdx.x % warp_threads, y = threadIdx.x / warp_threads;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * Tile::columns, mine = first + x * N;
  Pack<N> sum{};
  if (mine < columns) {
    for (std::int64_t r = blockIdx.y * Y + y; r < rows; r += gridDim.y * Y)
      sum += load_pack<N>(from + r * columns + mine, columns - mine);
  }
  for (int i = 0; i < N; ++i) tile.sum[y][i][x] = sum.at[i];
  __syncthreads();
  for (unsigned c = threadIdx.x; c < Tile::columns && first + c < columns; c += blockDim.x) {
    float all = tile.sum[0][c % N][c / N];
    for (int row = 1; row < Y; ++row) all += tile.sum[row][c % N][c / N];
    To& total = to[blockIdx.y * columns + first + c];
    total = rounded_to<To>(accumulate ? static_cast<float>(total) + all : all);
  }
}

/// Launches the kernel for @p slices slices.
template <int N, int Y, class To, class From>
void launch_sums(cudaStream_t stream, To* to, const From* from, std::int64_t rows, std::int64_t columns,
                 std::int64_t slices, bool accumulate)
{
  using Tile = ColumnTile<N, Y>;
  const dim3 blocks(static_cast<unsigned>(divided_up(columns, Tile::columns)), static_cast<unsigned>(slices));
  launch({stream, blocks, warp_threads * Y, sizeof(Tile)}, sum_rows<N, Y, To, From>, to, from, rows, columns,
         accumulate);
}

}  // namespace

void add_partial_sums(cudaStream_t stream, const Tensor& to, const Tensor& from)
{
  const std::int64_t columns = to.elements();
  with_gpu_type(to.type(), [&]<class To>(To) {
    launch_sums<1, 32>(stream, to.data<To>(), from.data<float>(), from.elements() / columns, columns, 1, true);
  });
}

void add_rows(cudaStream_t stream, const Tensor& to, const Tensor& from, const Tensor& scratch)
{
  constexpr std::int64_t enough = 1024;    // blocks
  constexpr std::int64_t worthwhile = 64;  // rows of a slice
  const std::int64_t columns = to.elements(), rows = from.elements() / columns;
  with_gpu_type(from.type(), [&]<class From>(From) {
    constexpr int N = pack_size<From>, Y = 8;
    const std::int64_t slices = std::min({divided_up(enough, divided_up(columns, ColumnTile<N, Y>::columns)),
                                          divided_up(rows, worthwhile), scratch.elements() / columns});
    if (slices > 1) {
      const Tensor sums = scratch.slice({0, slices * columns});
      launch_sums<N, Y>(stream, sums.data<float>(), from.data<From>(), rows, columns, slices, false);
      add_partial_sums(stream, to, sums);
      return;
    }
    with_gpu_type(to.type(), [&]<class To>(To) {
      launch_sums<N, Y>(stream, to.data<To>(), from.data<From>(), rows, columns, 1, true);
    });
  });
}

}  // namespace rankwise
