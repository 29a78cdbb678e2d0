#include "lessons/parallel/zero/sharded_adamw.hpp"

#include <utility>

namespace rankwise {

std::vector<Tensor> slices(const Tensor& flat, const std::vector<Range>& ranges)
{
  std::vector<Tensor> views;
  for (const Range& range : ranges) views.push_back(flat.slice(range));
  return views;
}

std::vector<Tensor> cut(const Tensor& flat, const std::vector<Range>& lengths)
{
  std::vector<Tensor> views;
  std::int64_t first = 0;
  for (const Range& range : lengths) {
    views.push_back(flat.slice({first, range.count}));
    first += range.count;
  }
  return views;
}

ShardedAdamW::ShardedAdamW(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
                           const std::vector<Range>& own, std::vector<Tensor> parameters,
                           const AdamWOptions& options)
    : parameters_(std::move(parameters))
{
  check(!own.empty() && own.size() == parameters_.size(), "there is no shard, or one without parameters");
  for (std::size_t i = 0; i < own.size(); ++i) {
    const AdamW& of = of_shards_.emplace_back(memory, stream, table, own[i], parameters_[i].type(), options);
    shards_.push_back({table, own[i], of.master(parameters_[i]), of.first_moments(), of.second_moments()});
  }
}

void ShardedAdamW::round(const Kernels& kernels) const
{
  for (std::size_t i = 0; i < parameters_.size(); ++i) of_shards_[i].round(kernels, parameters_[i]);
}

void ShardedAdamW::step(const Kernels& kernels, const std::vector<Tensor>& gradients, double learning_rate,
                        double gradient_scale)
{
  check(gradients.size() == parameters_.size(), "AdamW needs the gradients of each shard that it owns");
  if (before_update_) before_update_(gradients, of_shards_.front().next(learning_rate, gradient_scale));
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    of_shards_[i].step(kernels, parameters_[i], gradients[i], learning_rate, gradient_scale);
}

void ShardedAdamW::resume(std::int64_t updates)
{
  for (AdamW& adamw : of_shards_) adamw.resume(updates);
}

}  // namespace rankwise
