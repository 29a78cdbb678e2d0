#include "lessons/parallel/offload/offloaded_parameters.hpp"

#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"

namespace rankwise {

OffloadedParameters::OffloadedParameters(const OffloadPlan& plan, Tiers& tiers, Stream& stream,
                                         CommunicationQueue& queue, const ParameterTable& table,
                                         const GatherOptions& options)
    : ShardedParameters(tiers.place(Tier::device).memory, stream, queue, table, plan.step.buckets, plan.own,
                        plan.step.parameters, options, plan.tier_of(Category::parameters) == Tier::device),
      tiers_(tiers),
      here_(plan.tier_of(Category::parameters) == Tier::device)
{
  store_ = here_ ? std::make_shared<BlockStore>(tiers, own())
                 : std::make_shared<BlockStore>(tiers, plan.tier_of(Category::parameters), Category::parameters,
                                                plan.step.parameters, "shards of parameters");
}

/// Starts to fetch this rank's shard of a unit.
/// @return  a function that waits until it has arrived.
std::function<void()> OffloadedParameters::bring(std::size_t unit, const Tensor& to)
{
  const auto blocks = std::make_shared<std::vector<Pending>>();  // shared: a function is copied
  for (const std::size_t b : tiers_.blocks().of_shard(unit)) {
    const Range elements = tiers_.blocks()[b];
    blocks->push_back(
        store_->fetch(b, to.slice({elements.first - own_[unit].first, elements.count}), Tier::device));
  }
  return [blocks] {
    for (Pending& block : *blocks) block.wait();
  };
}

void OffloadedParameters::gather(std::size_t unit)
{
  if (here_) return ShardedParameters::gather(unit);
  const Range all = units_[unit].elements;
  gathered_[unit] = Buffer(memory_, Category::parameters, type_, {all.count}, "a gathered unit");
  const Tensor whole = gathered_[unit].tensor();
  const auto wait = bring(unit, whole.slice({own_[unit].first - all.first, own_[unit].count}));
  on_its_way_[unit] =
      queue_.start(fmt::format("gathering unit {}", units_[unit].units.first), [whole, wait](Group& world) {
        wait();
        all_gather(whole, world);
      });
}

void OffloadedParameters::bring_whole()
{
  for (std::size_t unit = 0; unit < units_.size() && !here_; ++unit)
    if (!own()[unit].empty()) bring(unit, own()[unit])();
}

}  // namespace rankwise
