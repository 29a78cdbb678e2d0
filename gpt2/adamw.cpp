#include "gpt2/adamw.hpp"

#include <algorithm>

#include "common/base/portable_math.hpp"

namespace rankwise {

double LearningRateSchedule::at(std::int64_t step) const
{
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (decay == Decay::constant) return peak;
  const std::int64_t decaying = std::max<std::int64_t>(steps - 1 - warmup, 1);
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(decaying);
  return least + 0.5 * (peak - least) * (1 + portable::cos_pi(progress));
}

std::vector<DecayRun> decay_runs(const ParameterTable& table, Range elements)
{
  std::vector<DecayRun> runs;
  for (const Parameter& p : table.entries()) {
    const Range mine = intersect(p.elements, elements);
    if (mine.empty() || p.frozen) continue;
    if (runs.empty() || runs.back().decays != p.decays || runs.back().elements.end() != mine.first)
      runs.push_back({{mine.first, 0}, p.decays});
    runs.back().elements.count += mine.count;
  }
  return runs;
}

void update_adamw(const Kernels& kernels, const std::vector<DecayRun>& runs, Range elements,
                  const AdamWTensors& tensors, AdamWStep step, double decay)
{
  const auto part = [](const Tensor& whole, Range range) { return whole.empty() ? whole : whole.slice(range); };
  for (const DecayRun& run : runs) {
    const Range mine{run.elements.first - elements.first, run.elements.count};
    step.weight_decay = run.decays ? decay : 0;
    kernels->adamw(tensors.weights.slice(mine), tensors.first_moments.slice(mine),
                   tensors.second_moments.slice(mine), tensors.gradients.slice(mine), step,
                   part(tensors.rounded, mine));
  }
}

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
  if (master_) kernels->convert(parameters, master_->tensor());
}

void AdamW::step(const Kernels& kernels, const Tensor& parameters, const Tensor& gradients, double learning_rate,
                 double gradient_scale)
{
  check(parameters.elements() == owned_.count && gradients.elements() == owned_.count,
        "AdamW was given another range than the one it updates");
  check((parameters.type() == DType::f32) == !master_, "AdamW was given parameters of another precision");
  const AdamWStep step = next(learning_rate, gradient_scale);
  if (before_update_) before_update_({gradients}, step);
  update_adamw(kernels, runs_, owned_,
               {master(parameters), first_.tensor(), second_.tensor(), gradients, master_ ? parameters : Tensor()},
               step, options_.weight_decay);
  ++updates_;
}

AdamWStep AdamW::next(double learning_rate, double gradient_scale) const
{
  return {.learning_rate = learning_rate,
          .beta1 = options_.beta1,
          .beta2 = options_.beta2,
          .epsilon = options_.epsilon,
          .gradient_scale = gradient_scale,
          .number = updates_ + 1};
}

double clip_factor(double norm, double limit)
{
  constexpr double epsilon = 1e-6;
  return limit > 0 ? std::min(1.0, limit / (norm + epsilon)) : 1.0;
}

}  // namespace rankwise
