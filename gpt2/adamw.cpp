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

namespace {

/// The elements @p owned of a table, cut where decay begins or ends.
std::vector<DecayRun> decay_runs(const ParameterTable& table, Range owned)
{
  std::vector<DecayRun> runs;
  for (const Parameter& p : table.entries()) {
    const Range mine = intersect(p.elements, owned);
    if (mine.empty()) continue;
    if (runs.empty() || runs.back().decays != p.decays || runs.back().elements.end() != mine.first)
      runs.push_back({{mine.first, 0}, p.decays});
    runs.back().elements.count += mine.count;
  }
  return runs;
}

}  // namespace

AdamW::AdamW(const DeviceMemory& memory, Stream& stream, const ParameterTable& table, Range owned, DType precision,
             const AdamWOptions& options)
    : owned_(owned),
      runs_(decay_runs(table, owned)),
      options_(options),
      first_(memory, Category::optimizer, DType::f32, {owned.count}, "first moments"),
      second_(memory, Category::optimizer, DType::f32, {owned.count}, "second moments")
{
  stream.zero(first_.tensor());
  stream.zero(second_.tensor());
  if (precision != DType::f32)
    master_.emplace(memory, Category::optimizer, DType::f32, Shape{owned.count}, "master weights");
}

void AdamW::round(const Kernels& kernels, const Tensor& parameters) const
{
  if (master_) kernels.convert(parameters, master_->tensor());
}

void AdamW::step(const Kernels& kernels, const Tensor& parameters, const Tensor& gradients, double learning_rate,
                 double gradient_scale)
{
  check(parameters.elements() == owned_.count && gradients.elements() == owned_.count,
        "AdamW was given another range than it owns");
  check((parameters.type() == DType::f32) == !master_, "AdamW was given parameters of another precision");
  const Tensor& weights = master(parameters);
  AdamWStep step{.learning_rate = learning_rate,
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .epsilon = options_.epsilon,
                 .gradient_scale = gradient_scale,
                 .number = ++updates_};
  for (const DecayRun& run : runs_) {
    const Range mine{run.elements.first - owned_.first, run.elements.count};
    step.weight_decay = run.decays ? options_.weight_decay : 0;
    kernels.adamw(weights.slice(mine), first_.tensor().slice(mine), second_.tensor().slice(mine),
                  gradients.slice(mine), step, master_ ? parameters.slice(mine) : Tensor());
  }
}

double clip_factor(double norm, double limit)
{
  constexpr double epsilon = 1e-6;
  return limit > 0 ? std::min(1.0, limit / (norm + epsilon)) : 1.0;
}

}  // namespace rankwise
