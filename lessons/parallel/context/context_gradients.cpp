#include "lessons/parallel/context/context_gradients.hpp"

#include "common/collectives/collectives.hpp"

namespace rankwise {

ContextGradients::ContextGradients(const Run& run, const GradientLayout& layout, TokenOrder order, Group& group)
    : run_(run), order_(order), group_(group)
{
  if (!run.arithmetic.continues_tree()) return;
  flat_ = Buffer(run.memory, further_sums, layout.type, {layout.elements}, "gradients of the later run");
  if (layout.tied.empty()) return;
  tied_ = Buffer(run.memory, further_sums, layout.type, {layout.tied.count}, "its tied gradients");
}

std::array<GradientTensors, TokenRuns::of_a_rank> ContextGradients::begin(const GradientTensors& d) const
{
  if (!run_.arithmetic.continues_tree()) return {d, {d.flat, d.tied}};
  const GradientTensors later{flat_.tensor(), tied_.tensor()};
  for (const Tensor& sum : {later.flat, later.tied})
    if (!sum.empty()) run_.stream->zero(sum);
  return {d, later};
}

void ContextGradients::end(const GradientTensors& d) const
{
  if (!run_.arithmetic.continues_tree()) return;
  for (const auto& [earlier, later] : {std::pair(d.flat, flat_.tensor()), std::pair(d.tied, tied_.tensor())}) {
    if (earlier.empty()) continue;
    const bool halves = order_ == TokenOrder::zigzag;
    if (!halves) run_.kernels->add(earlier, later);
    all_reduce_sum(earlier, group_);
    if (!halves) continue;
    all_reduce_sum(later, group_);
    run_.kernels->add(earlier, later);
  }
}

std::int64_t ContextGradients::bytes(const GradientLayout& layout, const Arithmetic& arithmetic)
{
  return arithmetic.continues_tree() ? bytes_of(layout.type) * (layout.elements + layout.tied.count) : 0;
}

}  // namespace rankwise
