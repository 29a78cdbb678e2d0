#include "common/cuda/launch.hpp"
#include "gpt2/kernels/cuda/column_sums.hpp"

namespace rankwise {

namespace {

constexpr int columns_of_block = warp_threads, rows_of_block = 8;

/// What the threads of a block have summed.
struct ColumnTile {
  float sum[rows_of_block][columns_of_block];
};

/// to[slice, j] = or += the sum of the rows of one slice: those whose number, divided by rows_of_block, leaves `slice`
/// modulo the number of slices.
///
/// Block (i, slice): 32 columns. Thread (y, x): column 32 i + x, every (8 slices)-th row, so that a warp reads 128
/// neighbouring bytes. Reads 4 rows columns bytes.
__global__ void __launch_bounds__(columns_of_block* rows_of_block)
    sum_rows(float* to, const float* from, std::int64_t rows, std::int64_t columns, bool accumulate)
{
  auto& tile = shared_memory<ColumnTile>();
  const unsigned x = threadIdx.x % columns_of_block, y = threadIdx.x / columns_of_block, slices = gridDim.y;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * columns_of_block + x;
  float sum = 0;
  if (j < columns)
    for (std::int64_t r = blockIdx.y * rows_of_block + y; r < rows; r += slices * rows_of_block)
      sum += from[r * columns + j];
  tile.sum[y][x] = sum;
  __syncthreads();
  if (y > 0 || j >= columns) return;
  for (int i = 1; i < rows_of_block; ++i) sum += tile.sum[i][x];
  float& total = to[blockIdx.y * columns + j];
  total = accumulate ? total + sum : sum;
}

/// One block for each 32 columns of each slice.
Grid grid_of(cudaStream_t stream, std::int64_t columns, std::int64_t slices)
{
  return {stream, dim3(static_cast<unsigned>(divided_up(columns, columns_of_block)), static_cast<unsigned>(slices)),
          columns_of_block * rows_of_block, sizeof(ColumnTile)};
}

}  // namespace

void add_rows(cudaStream_t stream, float* to, const float* from, std::int64_t rows, std::int64_t columns)
{
  launch(grid_of(stream, columns, 1), sum_rows, to, from, rows, columns, true);
}

void add_many_rows(cudaStream_t stream, float* to, const float* from, std::int64_t rows, std::int64_t columns,
                   float* scratch, std::int64_t room)
{
  constexpr std::int64_t enough = 1024;    // blocks
  constexpr std::int64_t worthwhile = 64;  // rows of a slice
  const std::int64_t slices = std::min(
      {divided_up(enough, divided_up(columns, columns_of_block)), divided_up(rows, worthwhile), room / columns});
  if (slices <= 1) {
    add_rows(stream, to, from, rows, columns);
    return;
  }
  launch(grid_of(stream, columns, slices), sum_rows, scratch, from, rows, columns, false);
  add_rows(stream, to, scratch, slices, columns);
}

}  // namespace rankwise
