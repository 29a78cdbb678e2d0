#include <cmath>
#include <vector>

#include "gpt2/kernels/exact/segments.hpp"
#include "gpt2/kernels/ordered_sum.hpp"
#include "tests/catch.hpp"

namespace rankwise {

#ifdef __x86_64__
SumTiles sum_tiles_avx2, sum_tiles_avx512;

TEST_CASE("sum_tiles: registers of every width give the bits of ordered_sum(), also in segments that cut leaves")
{
  const std::vector<std::pair<SumTiles*, bool>> widths{{sum_tiles_avx2, __builtin_cpu_supports("fma") != 0},
                                                       {sum_tiles_avx512, __builtin_cpu_supports("avx512f") != 0}};
  for (const auto& [sum, there] : widths)
    for (const SumOrder& order : {SumOrder::sequential(9), SumOrder::batch(3, 17, 16), SumOrder::split(50, 7)})
      for (const std::int64_t most : {5, 1000}) {
        if (!there) continue;
        alignas(64) float left[12 * 51], right[32 * 51], places[8 * 12 * 32];
        for (int i = 0; i < 12 * 51; ++i) left[i] = std::sin(static_cast<float>(i));
        for (int i = 0; i < 32 * 51; ++i) right[i] = std::cos(static_cast<float>(i));
        for (std::int64_t first = 0; const Segment& segment : segments_of(order, most)) {
          sum({left + 12 * first, 12, 1, right + 32 * first, 32}, 12, 32, segment.pieces.data(),
              std::ssize(segment.pieces), {places, 32, 384});
          first += segment.count;
        }
        for (int i = 0; i < 384; ++i)
          CHECK(places[i] + 0 == ordered_sum(order, [&](std::int64_t k) {
                  return Factors<float>{left[12 * k + i / 32], right[32 * k + i % 32]};
                }));
      }
}
#endif

}  // namespace rankwise
