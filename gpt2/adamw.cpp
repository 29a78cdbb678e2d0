#include "gpt2/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rankwise {

double Schedule::at(std::int64_t step) const
{
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (decay == Decay::constant) return peak;
  const std::int64_t decaying = std::max<std::int64_t>(steps - 1 - warmup, 1);
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(decaying);
  return least + 0.5 * (peak - least) * (1 + std::cos(std::numbers::pi * progress));
}

AdamW::AdamW(const DeviceMemory& memory, Stream& stream, const ParameterTable& table, Range owned,
             const AdamWOptions& options)
    : table_(table),
      owned_(owned),
      options_(options),
      first_(memory, Category::optimizer, DType::f32, {owned.count}, "first moments"),
      second_(memory, Category::optimizer, DType::f32, {owned.count}, "second moments")
{
  stream.zero(first_.tensor());
  stream.zero(second_.tensor());
}

void AdamW::step(const Kernels& kernels, const Tensor& parameters, const Tensor& gradients, double learning_rate,
                 double gradient_scale)
{
  check(parameters.elements() == owned_.count && gradients.elements() == owned_.count,
        "AdamW was given another range than it owns");
  AdamWStep step{.learning_rate = learning_rate,
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .epsilon = options_.epsilon,
                 .gradient_scale = gradient_scale,
                 .number = ++updates_};
  for (const Parameter& p : table_.entries()) {
    const Range shared = intersect(p.elements, owned_);
    if (shared.empty()) continue;
    const Range mine{shared.first - owned_.first, shared.count};
    step.weight_decay = p.decays ? options_.weight_decay : 0;
    kernels.adamw(parameters.slice(mine), first_.tensor().slice(mine), second_.tensor().slice(mine),
                  gradients.slice(mine), step);
  }
}

double clip_factor(double norm, double limit)
{
  constexpr double epsilon = 1e-6;
  return limit > 0 ? std::min(1.0, limit / (norm + epsilon)) : 1.0;
}

}  // namespace rankwise
