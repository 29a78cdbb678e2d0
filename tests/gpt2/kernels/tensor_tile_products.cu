#include "gpt2/kernels/cuda/tensor_tiles.hpp"
#include "tests/gpt2/kernels/tensor_tile_products.hpp"

namespace rankwise::testing {

namespace {

constexpr int tiles = factor_side / tile_side;  // along each side
constexpr int warps = tiles * tiles;

using Factor = TokenLines<factor_side, factor_side>;

struct Factors {
  Factor a, b, rounded;
};

/// Begins to copy all of a factor; each thread of the block copies one piece of 16 bytes.
__device__ void load(Factor& factor, const bf16* from)
{
  const auto line = static_cast<int>(threadIdx.x) / 4, column = static_cast<int>(threadIdx.x) % 4 * 8;
  copy_piece(&factor.at[line][column], from + line * factor_side + column, true);
  __pipeline_commit();
}

__device__ void write(float* to, const ProductTile& tile, int line, int column)
{
  for (int n = 0; n < 2; ++n)
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c)
        to[(line + ProductTile::line(r)) * factor_side + column + ProductTile::column(n, c)] = tile.at[n][r][c];
}

/// Block: one. Warp: one tile of each product.
__global__ void multiply(const TileProducts products)
{
  auto& factors = shared_memory<Factors>();
  load(factors.b, products.b);
  load(factors.a, products.a);
  __pipeline_wait_prior(0);
  __syncthreads();
  const int line = warp_number() / tiles * tile_side, column = warp_number() % tiles * tile_side;
  ProductTile with_lines{}, with_columns{}, of_product{};
  for (int k = 0; k < factor_side; k += tile_side) {
    const LeftTile left = LeftTile::of(factors.a, line, k);
    with_lines.add(left, RightTile::of_lines(factors.b, column, k));
    with_columns.add(left, RightTile::of_columns(factors.b, k, column));
    ProductTile inner{};
    for (int i = 0; i < factor_side; i += tile_side)
      inner.add(LeftTile::of(factors.a, line, i), RightTile::of_lines(factors.b, k, i));
    of_product.add(LeftTile::of(inner), RightTile::of_columns(factors.b, k, column));
  }
  write(products.with_lines, with_lines, line, column);
  write(products.with_columns, with_columns, line, column);
  write(products.of_product, of_product, line, column);
  with_columns.store(factors.rounded, line, column);
  __syncthreads();
  for (auto i = static_cast<int>(threadIdx.x); i < factor_side * factor_side; i += warps * warp_threads)
    products.rounded[i] = factors.rounded.at[i / factor_side][i % factor_side];
}

}  // namespace

void multiply_by_tiles(cudaStream_t stream, const TileProducts& products)
{
  launch({stream, dim3(1), warps * warp_threads, sizeof(Factors)}, multiply, products);
}

void raise_two(cudaStream_t stream, float* to, const float* from, std::int64_t count)
{
  for_each(stream, count, [=] __device__(std::int64_t i) { to[i] = power_of_two(from[i]); });
}

}  // namespace rankwise::testing
