#include "gpt2/kernels/exact/sum_tiles_here.hpp"

namespace rankwise {

void sum_tile_avx2(const TileFactors& factors, TileSize size, const LeafPiece* piece, std::int64_t pieces,
                   const TilePlaces& places)
{
  sum_tile_here(factors, size, piece, pieces, places);
}

}  // namespace rankwise
