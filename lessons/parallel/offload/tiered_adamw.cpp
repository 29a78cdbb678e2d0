#include "lessons/parallel/offload/tiered_adamw.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gpt2/run_report.hpp"
#include "lessons/frame/finite.hpp"

namespace rankwise {

namespace {

/// A vector of AdamW's states.
TieredVector make(const OffloadPlan& plan, Tiers& tiers, const char* what)
{
  const Tier home = plan.tier_of(Category::optimizer);
  return {tiers,      home, plan.updated_in(),
          DType::f32, what, std::make_shared<BlockStore>(tiers, home, Category::optimizer, DType::f32, what)};
}

}  // namespace

TieredAdamW::TieredAdamW(const OffloadPlan& plan, Tiers& tiers, const ParameterTable& table,
                         std::shared_ptr<BlockStore> parameters, const AdamWOptions& options)
    : tiers_(tiers),
      table_(table),
      where_(tiers.place(plan.updated_in())),
      options_(options),
      parameters_(tiers, parameters->home(), plan.updated_in(), plan.step.parameters, "parameters", parameters),
      first_(make(plan, tiers, "first moments")),
      second_(make(plan, tiers, "second moments"))
{
  if (!plan.updates_early())
    gradients_.emplace(tiers, plan.tier_of(Category::gradients), plan.updated_in(), plan.step.gradients,
                       "gradients", nullptr);
  if (plan.has_master()) master_.emplace(make(plan, tiers, "master weights"));
  for (std::size_t b = 0; b < tiers.blocks().count(); ++b) runs_.push_back(decay_runs(table, tiers.blocks()[b]));
}

void TieredAdamW::for_each(Access access, const UseShard& work)
{
  for (TieredVector* v : {&weights(), &first_, &second_}) v->begin(access);
  for (std::size_t b = 0; b < tiers_.blocks().count(); ++b)
    work({table_, tiers_.blocks()[b], weights().block(b), first_.block(b), second_.block(b)}, where_.stream);
  for (TieredVector* v : {&weights(), &first_, &second_}) v->end();
}

HeldShards TieredAdamW::shards(const std::vector<Range>& ranges)
{
  // BEGIN EXERCISE 07.3
  // A walk has a few blocks at a time where AdamW runs, so no tier but the lowest ever holds all of the state.
  const auto walk = [this, ranges](Access access, const UseShard& use) {
    for_each(access, [&](const Shard& block, Stream& stream) {
      for (const Range& range : ranges) {
        const Range both = intersect(block.owned, range);
        if (both.empty()) continue;
        const Range at{both.first - block.owned.first, both.count};
        use({block.table, both, block.parameters.slice(at), block.first_moments.slice(at),
             block.second_moments.slice(at)},
            stream);
      }
    });
  };
  // The digest and a comparison want weights without moments, in their own order: only the blocks that have some of
  // them are fetched.
  const auto copy = [this](Range elements, const Tensor& to) {
    for (std::size_t b = 0; b < tiers_.blocks().count(); ++b) {
      const Range block = tiers_.blocks()[b], both = intersect(block, elements);
      if (both.empty()) continue;
      where_.stream.copy(to.slice({both.first - elements.first, both.count}),
                         weights().at(b).slice({both.first - block.first, both.count}));
      where_.stream.synchronise();  // the slot is reused for the next block
    }
  };
  return {table_, ranges, walk, copy};
  // END EXERCISE
}

void TieredAdamW::round_block(std::size_t block, const Tensor& weights)
{
  if (master_) where_.kernels->convert(parameters_.block(block), weights);
}

void TieredAdamW::round()
{
  if (!master_) return;
  weights().begin(Access::read);
  parameters_.begin(Access::write);
  for (std::size_t b = 0; b < tiers_.blocks().count(); ++b) round_block(b, weights().block(b));
  weights().end();
  parameters_.end();
}

void TieredAdamW::step(std::shared_ptr<BlockStore> gradients, const TieredStep& numbers)
{
  gradients_->show(std::move(gradients));
  gradients_->begin(Access::read);
  begin(numbers);
  for (std::size_t b = 0; b < tiers_.blocks().count(); ++b) update(b, gradients_->block(b));
  end();
  gradients_->end();
}

void TieredAdamW::begin(const TieredStep& numbers)
{
  for (TieredVector* v : {&weights(), &first_, &second_}) v->begin(Access::update);
  if (master_) parameters_.begin(Access::write);
  step_ = numbers;
  ++updates_;
  under_way_ = true;
}

void TieredAdamW::update(std::size_t block, const Tensor& gradient)
{
  const AdamWStep numbers{.learning_rate = step_.learning_rate,
                          .beta1 = options_.beta1,
                          .beta2 = options_.beta2,
                          .epsilon = options_.epsilon,
                          .gradient_scale = step_.gradient_scale,
                          .number = updates_};
  if (before_block_) before_block_(tiers_.blocks()[block], gradient);
  const Tensor changed = weights().block(block);
  update_adamw(where_.kernels, runs_[block], tiers_.blocks()[block],
               {changed, first_.block(block), second_.block(block), gradient, {}}, numbers, options_.weight_decay);
  round_block(block, changed);
}

void TieredAdamW::end()
{
  for (TieredVector* v : {&weights(), &first_, &second_}) v->end();
  if (master_) parameters_.end();
  under_way_ = false;
}

void TieredAdamW::expect_finite(std::optional<std::int64_t> first) const
{
  if (first) end_not_finite(step_.step, step_.loss, std::nan(""), table_, first);
}

std::optional<std::int64_t> TieredAdamW::first_not_finite(std::shared_ptr<BlockStore> gradients,
                                                          std::optional<std::int64_t> of_gradients)
{
  std::optional<std::int64_t> first = of_gradients;
  if (gradients != nullptr) {
    gradients_->show(gradients);
    gradients_->begin(Access::read);
  }
  std::size_t b = 0;
  for_each(Access::read, [&](const Shard& mine, Stream&) {
    note_not_finite(first, where_.kernels, mine.parameters, mine.owned.first);
    if (gradients != nullptr)
      note_not_finite(first, where_.kernels, gradients_->block(b++), table_.elements() + mine.owned.first);
  });
  if (gradients != nullptr) gradients_->end();
  return first;
}

}  // namespace rankwise
