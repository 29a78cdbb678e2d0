#include "gpt2/kernels/exact/sum_tiles_here.hpp"

namespace rankwise {

void sum_tiles_avx2(const TileFactors& factors, std::int64_t rows, std::int64_t columns, const LeafPiece* piece,
                    std::int64_t pieces, const TilePlaces& places)
{
  sum_tiles_here(factors, rows, columns, piece, pieces, places);
}

}  // namespace rankwise
