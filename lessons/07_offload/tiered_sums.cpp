#include "lessons/07_offload/tiered_sums.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/collectives/collectives.hpp"
#include "lessons/04_zero1/shards.hpp"

namespace rankwise {

TieredSums::TieredSums(const OffloadPlan& plan, const Arithmetic& arithmetic, Tiers& tiers, const Place& device,
                       const Place& host)
    : plan_(plan), tiers_(tiers), device_(device), host_(host)
{
  const Tier tier = plan_.tier_of(Category::gradients);
  const DType type = plan_.step.gradients;
  if (tier == Tier::device) {
    on_device_.emplace(arithmetic, device.kernels, device.stream, tiers.memory(tier), sums_of(plan_.step),
                       plan_.own);
    return;
  }
  for (std::int64_t l = 0; l < plan_.levels(); ++l) {
    Level& level = levels_.emplace_back();
    level.sums = tiers.make_store(tier, l == 0 ? Category::gradients : Category::exact_sums, type, "gradients");
    if (plan_.blocks.tied_elements() > 0 && l + 1 < plan_.levels())
      level.tied = tiers.make_store(tier, Category::exact_sums, type, "tied gradients", true);
  }
  landing_elements_ = plan_.landing_bytes() / bytes_of(type) / plan_.landings();
  landing_ = Buffer(tiers.memory(Tier::host), Category::staging, type, {plan_.landings() * landing_elements_},
                    "room for gradients");
  if (tier == Tier::disk && plan_.passes() > 1)
    for (Buffer& room : room_)
      room = Buffer(tiers.memory(Tier::host), Category::staging, type, {plan_.blocks.largest()},
                    "room for sums of gradients");
}

std::vector<Tensor> TieredSums::landing(std::size_t segment, const std::vector<Tensor>& gradients)
{
  if (on_device_) return gradients;
  now_ = segment % static_cast<std::size_t>(plan_.landings());
  for (BlockTransfer& store : stores_[now_]) tiers_.wait(store);
  stores_[now_].clear();
  std::vector<Tensor> there;
  std::int64_t first = static_cast<std::int64_t>(now_) * landing_elements_;
  for (const Tensor& g : gradients) {
    there.push_back(landing_.tensor().slice({first, g.elements()}));
    first += g.elements();
  }
  return there;
}

void TieredSums::land(const std::vector<Tensor>& there, const std::vector<Tensor>& gradients, Stream& stream)
{
  if (on_device_) return;
  stream.synchronise();
  for (std::size_t i = 0; i < there.size(); ++i)
    tiers_.links().count(TierLink::from_device, there[i].bytes(), [&] {
      stream.copy(there[i], gradients[i]);
      stream.synchronise();
    });
}

void TieredSums::add(std::size_t segment, Range sequences, const std::vector<Tensor>& there)
{
  if (on_device_) return on_device_->add(segment, sequences, there);
  if (sequences.first == 0 && segment == 0) squares_ = {};
  const std::int64_t pass = sequences.first / sequences.count;
  const std::vector<Gradients> gradients = blocks_of(segment, there);
  add_waiting(gradients, pass);
  for (const Gradients& g : gradients) keep(g, pass);
}

std::vector<TieredSums::Gradients> TieredSums::blocks_of(std::size_t segment,
                                                         const std::vector<Tensor>& there) const
{
  const Range all = plan_.own[segment], tied = intersect(all, sums_of(plan_.step).tied),
              numbers = plan_.blocks.of_segment(segment);
  std::vector<Gradients> gradients;
  for (std::int64_t b = numbers.first; b < numbers.end(); ++b) {
    const auto block = static_cast<std::size_t>(b);
    const Range elements = plan_.blocks[block];
    Gradients& g = gradients.emplace_back(block);
    g.sum = there[0].slice({elements.first - all.first, elements.count});
    if (plan_.blocks.is_tied(block)) g.tied = there[1].slice({elements.first - tied.first, elements.count});
  }
  return gradients;
}

std::size_t TieredSums::waiting(std::int64_t pass) const
{
  if (levels_.size() == 1) return pass == 0 ? 0 : 1;
  return static_cast<std::size_t>(std::countr_one(static_cast<std::uint64_t>(pass)));
}

void TieredSums::add_waiting(const std::vector<Gradients>& gradients, std::int64_t pass)
{
  /// A block that waits, and what it is added to.
  struct Term {
    BlockStore& level;
    std::size_t block;
    Tensor to;
  };
  std::vector<Term> terms;
  for (const Gradients& g : gradients)
    for (std::size_t l = 0; l < waiting(pass); ++l) {
      terms.push_back({*levels_[l].sums, g.block, g.sum});
      if (!g.tied.empty()) terms.push_back({*levels_[l].tied, g.block, g.tied});
    }
  const auto room = [&](std::size_t i) { return room_[i % 2].tensor().slice({0, terms[i].to.elements()}); };
  std::array<BlockTransfer, 2> comes;
  const auto fetch = [&](std::size_t i) {
    if (i < terms.size() && terms[i].level.lies() == Tier::disk)
      comes[i % 2] = terms[i].level.fetch(terms[i].block, room(i), Tier::host);
  };
  fetch(0);
  for (std::size_t i = 0; i < terms.size(); ++i) {
    fetch(i + 1);
    tiers_.wait(comes[i % 2]);
    const BlockStore& level = terms[i].level;
    host_.kernels.add(terms[i].to, level.lies() == Tier::disk ? room(i) : level.in_place(terms[i].block));
  }
}

void TieredSums::keep(const Gradients& g, std::int64_t pass)
{
  const Level& level = levels_[levels_.size() == 1 ? 0 : waiting(pass)];
  if (pass + 1 == plan_.passes()) {
    if (!g.tied.empty()) host_.kernels.add(g.sum, g.tied);
    squares_ += host_.kernels.squared_norm(g.sum);
  } else if (!g.tied.empty()) {
    keep(*level.tied, g.block, g.tied);
  }
  keep(*level.sums, g.block, g.sum);
}

void TieredSums::keep(BlockStore& level, std::size_t block, const Tensor& sum)
{
  if (level.lies() == Tier::host)
    host_.stream.copy(level.in_place(block), sum);
  else
    stores_[now_].push_back(level.store(block, sum, Tier::host));
}

BlockStore& TieredSums::totals()
{
  for (std::vector<BlockTransfer>& stores : stores_) {
    for (BlockTransfer& store : stores) tiers_.wait(store);
    stores.clear();
  }
  if (!on_device_) return *levels_.back().sums;
  totals_ = on_device_->totals();
  shown_ = tiers_.lend(Tier::device, totals_);
  return *shown_;
}

double TieredSums::squared_norm(Group& group)
{
  if (on_device_) return rankwise::squared_norm(device_.kernels, totals_, group);
  ExactScalar sum = squares_;
  all_reduce_sum(sum, group);
  return sum.value();
}

}  // namespace rankwise
