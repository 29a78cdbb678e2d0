#include "lessons/parallel/experts/expert_gradients.hpp"

#include "common/base/tree_sum.hpp"

namespace rankwise {

namespace {

/// Number of sums: exact arithmetic keeps those of the ranks apart.
std::int64_t sums_for(const Arithmetic& arithmetic, std::int64_t e)
{
  return arithmetic.continues_tree() ? e : 1;
}

}  // namespace

ExpertGradients::ExpertGradients(const Arithmetic& arithmetic, const Kernels& kernels, Stream& stream,
                                 const DeviceMemory& memory, const GradientLayout& layout, Part group,
                                 std::int64_t share)
    : kernels_(kernels), group_(group), share_(share), open_(static_cast<std::size_t>(group.count))
{
  for (std::int64_t i = 0; i < sums_for(arithmetic, group.count); ++i)
    sums_.push_back(arithmetic.make_gradient_sum(kernels, stream, memory, layout));
}

/// The sequences that rank @p rank of the group computes while this one computes @p own.
Range ExpertGradients::of_rank(Range own, std::int64_t rank) const
{
  return {own.first + (rank - group_.index) * share_, own.count};
}

void ExpertGradients::begin(Range own)
{
  const std::int64_t sums = std::ssize(sums_);
  for (std::int64_t rank = 0; rank < sums; ++rank)
    open_[static_cast<std::size_t>(rank)] = sums_[static_cast<std::size_t>(rank)]->begin(of_rank(own, rank)).flat;
  for (std::size_t rank = sums_.size(); rank < open_.size(); ++rank) open_[rank] = open_.front();
}

void ExpertGradients::end(Range own)
{
  for (std::size_t rank = 0; rank < sums_.size(); ++rank)
    sums_[rank]->end(of_rank(own, static_cast<std::int64_t>(rank)));
}

Tensor ExpertGradients::total()
{
  std::vector<Tensor> totals;
  for (const auto& sum : sums_) totals.push_back(sum->total());
  // Neighbours first, as tree_sum() adds: ranks 0 and 1, 2 and 3; then the sums of these pairs.
  tree_over(std::ssize(totals), [&](std::size_t i, std::size_t j) { kernels_->add(totals[i], totals[j]); });
  return totals.front();
}

void ExpertGradients::clear()
{
  for (const auto& sum : sums_) sum->clear();
}

CategoryBytes ExpertGradients::bytes(const Arithmetic& arithmetic, const GradientLayout& layout, std::int64_t M,
                                     std::int64_t e)
{
  CategoryBytes bytes;
  for (std::int64_t i = 0; i < sums_for(arithmetic, e); ++i) bytes += arithmetic.gradient_bytes(layout, M);
  return bytes;
}

}  // namespace rankwise
