#include "gpt2/kernels/exact/sum_tiles_here.hpp"

namespace rankwise {

#ifdef RANKWISE_WIDE_TILES
void sum_tile_avx2(const TileFactors& factors, TileSize size, const LeafPiece* piece, std::int64_t pieces,
                   const TilePlaces& places);
void sum_tile_avx512(const TileFactors& factors, TileSize size, const LeafPiece* piece, std::int64_t pieces,
                     const TilePlaces& places);
#endif

void sum_tile(const TileFactors& factors, TileSize size, std::span<const LeafPiece> pieces,
              const TilePlaces& places)
{
  static const auto widest = [] {
#ifdef RANKWISE_WIDE_TILES
    if (__builtin_cpu_supports("avx512f")) return sum_tile_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return sum_tile_avx2;
#endif
    return sum_tile_here;
  }();
  widest(factors, size, pieces.data(), static_cast<std::int64_t>(pieces.size()), places);
}

}  // namespace rankwise
