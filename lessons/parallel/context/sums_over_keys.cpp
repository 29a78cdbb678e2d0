#include "lessons/parallel/context/sums_over_keys.hpp"

#include "common/base/tree_sum.hpp"

namespace rankwise {

SumsOverKeys::SumsOverKeys(const Run& run, std::int64_t runs) : keeps_all_(run.arithmetic.continues_tree())
{
  const ActivationShape& shape = run.shape;
  const std::int64_t heads = run.config.heads / shape.part.count, C = head_channels_here(run.config, shape);
  const auto make = [&](const Shape& extents, const char* what) {
    buffers_.emplace_back(run.memory, Category::workspace, accumulator_of(shape.type), extents, what);
    return buffers_.back().tensor();
  };
  for (std::int64_t i = 0; i < kept(run.arithmetic, runs); ++i)
    results_.push_back({make({shape.B, heads, shape.T}, "maxima of scores"),
                        make({shape.B, heads, shape.T}, "sums of exponentials"),
                        make({shape.rows(), C}, "weighted values")});
}

const SoftmaxPartial& SumsOverKeys::next(std::int64_t key_run) const
{
  const std::int64_t place = keeps_all_ ? key_run : arrived_ > 0 ? 1 : 0;
  return results_[static_cast<std::size_t>(place)];
}

void SumsOverKeys::added(const Combine& combine)
{
  ++arrived_;
  if (!keeps_all_ && arrived_ > 1) combine(results_[0], results_[1]);
}

const SoftmaxPartial& SumsOverKeys::total(const Combine& combine) const
{
  // A query sees the first keys of a sequence, so the runs that are missing are the last leaves of the tree.
  if (keeps_all_) tree_over(arrived_, [&](std::size_t i, std::size_t j) { combine(results_[i], results_[j]); });
  return results_.front();
}

std::int64_t SumsOverKeys::kept(const Arithmetic& arithmetic, std::int64_t runs)
{
  return arithmetic.continues_tree() ? runs : 2;
}

std::int64_t SumsOverKeys::bytes_of_result(const ModelConfig& config, const ActivationShape& shape)
{
  return bytes_of(accumulator_of(shape.type)) * shape.rows() * (config.channels + 2 * config.heads) /
         shape.part.count;
}

}  // namespace rankwise
