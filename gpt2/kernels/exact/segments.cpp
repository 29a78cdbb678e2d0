#include "gpt2/kernels/exact/segments.hpp"

#include <algorithm>
#include <bit>

namespace rankwise {

std::vector<Segment> segments_of(const SumOrder& order, std::int64_t most)
{
  const std::int64_t parts = std::max<std::int64_t>(1, (order.terms() + most - 1) / most);
  const std::int64_t length = (order.terms() + parts - 1) / parts;
  std::vector<Segment> segments(1);
  int waiting = 0;  // finished subtrees
  for (std::int64_t leaf = 0; leaf < order.leaves(); ++leaf) {
    if (leaf > 0 && segments.back().count == length) segments.emplace_back();
    segments.back().pieces.push_back({0, true, waiting, 0});
    for (std::int64_t run = 0; run < order.runs(); ++run)
      for (Range left = order.run(leaf, run); left.count > 0;) {
        if (segments.back().count == length)  // the leaf continues in the next segment
          segments.emplace_back().pieces.push_back({0, false, waiting, 0});
        Segment& segment = segments.back();
        const std::int64_t more = std::min(left.count, length - segment.count);
        segment.terms.push_back({left.first, more});
        segment.pieces.back().terms += more;
        segment.count += more;
        left = {left.first + more, left.count - more};
      }
    // As in tree_in_places(): each factor of two in leaf + 1 completes a subtree, and the last leaf all of them.
    const int merges =
        leaf + 1 == order.leaves() ? waiting : std::countr_zero(static_cast<std::uint64_t>(leaf + 1));
    segments.back().pieces.back().merges = merges;
    waiting += 1 - merges;
  }
  return segments;
}

}  // namespace rankwise
