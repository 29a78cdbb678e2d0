#include "lessons/05_zero2/shard_sums.hpp"

namespace rankwise {

std::vector<GradientLayout> layouts_of(const GradientLayout& all, const std::vector<Range>& own)
{
  std::vector<GradientLayout> layouts;
  for (const Range& segment : own) {
    const Range tied = intersect(segment, all.tied);
    layouts.push_back({.elements = segment.count,
                       .type = all.type,
                       .tied = {tied.empty() ? 0 : tied.first - segment.first, tied.count}});
  }
  return layouts;
}

std::vector<std::unique_ptr<GradientSum>> make_sums(const Arithmetic& arithmetic, const Kernels& kernels,
                                                    Stream& stream, const DeviceMemory& memory,
                                                    const std::vector<GradientLayout>& layouts)
{
  std::vector<std::unique_ptr<GradientSum>> sums;
  for (const GradientLayout& layout : layouts)
    sums.push_back(arithmetic.make_gradient_sum(kernels, stream, memory, layout));
  return sums;
}

CategoryBytes sum_bytes(const Arithmetic& arithmetic, const std::vector<GradientLayout>& layouts,
                        std::int64_t passes)
{
  CategoryBytes bytes;
  for (const GradientLayout& layout : layouts) {
    const CategoryBytes of_one = arithmetic.gradient_bytes(layout, passes);
    for (int c = 0; c < category_count; ++c) bytes[static_cast<Category>(c)] += of_one[static_cast<Category>(c)];
  }
  return bytes;
}

}  // namespace rankwise
