#include "lessons/parallel/zero/gradient_exchange.hpp"

#include "common/collectives/collectives.hpp"

namespace rankwise {

namespace {

template <class Sum>
void exchange(const std::vector<Sum>& gradients, Group& group)
{
  reduce_scatter_sum(gradients.front(), group);
  if (gradients.size() > 1) all_reduce_sum(gradients.back(), group);
}

}  // namespace

void reduce_scatter_sum(const std::vector<PartialSum>& gradients, Group& group)
{
  exchange(gradients, group);
}

void reduce_scatter_sum(const std::vector<Tensor>& gradients, Group& group)
{
  exchange(gradients, group);
}

std::vector<SumOfRange> by_range(const std::vector<PartialSum>& sums, const std::vector<Range>& ranges)
{
  std::vector<SumOfRange> parts;
  std::int64_t first = 0;
  for (const Range& range : ranges) {
    parts.push_back({range, sums.front().slice({first, range.count})});
    first += range.count;
  }
  if (sums.size() > 1) parts.push_back({ranges.front(), sums.back()});
  return parts;
}

}  // namespace rankwise
