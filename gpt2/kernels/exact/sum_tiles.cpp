#include "gpt2/kernels/exact/sum_tiles_here.hpp"

namespace rankwise {

#ifdef RANKWISE_WIDE_TILES
SumTiles sum_tiles_avx2, sum_tiles_avx512;
#endif

void sum_tiles(const TileFactors& factors, std::int64_t rows, std::int64_t columns,
               std::span<const LeafPiece> pieces, const TilePlaces& places)
{
  static const auto widest = [] {
#ifdef RANKWISE_WIDE_TILES
    if (__builtin_cpu_supports("avx512f")) return sum_tiles_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return sum_tiles_avx2;
#endif
    return sum_tiles_here;
  }();
  widest(factors, rows, columns, pieces.data(), static_cast<std::int64_t>(pieces.size()), places);
}

}  // namespace rankwise
