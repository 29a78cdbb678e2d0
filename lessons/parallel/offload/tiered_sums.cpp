#include "lessons/parallel/offload/tiered_sums.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/collectives/collectives.hpp"
#include "lessons/frame/finite.hpp"
#include "lessons/parallel/zero/gradient_exchange.hpp"

namespace rankwise {

TieredSums::TieredSums(const OffloadPlan& plan, Tiers& tiers)
    : plan_(plan), tiers_(tiers), device_(tiers.place(Tier::device)), host_(tiers.place(Tier::host))
{
  const Tier tier = plan_.tier_of(Category::gradients);
  const DType type = plan_.step.gradients;
  if (tier == Tier::device) {
    on_device_.emplace(device_.kernels, device_.stream, device_.memory, plan_.step, plan_.own, plan_.ranks);
    return;
  }
  received_.emplace(device_.memory, sums_of(plan_.step), plan_.own, separate_ranks(plan_.step, plan_.ranks));
  for (std::int64_t l = 0; l < plan_.kept_sums(); ++l) {
    const Category category = l == 0 ? Category::gradients : further_sums;
    Level& level = levels_.emplace_back();
    level.sums = std::make_shared<BlockStore>(tiers, tier, category, type, "gradients");
    if (plan_.blocks.tied_elements() > 0 && l < plan_.partial_levels())
      level.tied = std::make_shared<BlockStore>(tiers, tier, further_sums, type, "tied gradients", true);
  }
  const auto make_slot = [&](const char* what) { return tiers.make_slot(tier, Tier::host, type, what); };
  landings_.resize(static_cast<std::size_t>(plan_.landings()));
  for (Landing& landing : landings_) {
    for (std::int64_t i = 0; i < plan_.landing_blocks(false); ++i) landing.sums.push_back(make_slot("gradients"));
    for (std::int64_t i = 0; i < plan_.landing_blocks(true); ++i)
      landing.tied.push_back(make_slot("tied gradients"));
  }
  if (tier == Tier::disk && plan_.terms_of_step() > 1)
    for (BlockBuffer& slot : buffers_) slot = make_slot("sums of gradients");
}

void TieredSums::wait_for_stores(Landing& landing)
{
  for (Pending& store : landing.stores) tiers_.wait(store);
  landing.stores.clear();
}

TieredSums::Arrival TieredSums::expect(std::size_t shard, const std::vector<Tensor>& gradients)
{
  Arrival there{.shard = shard, .from = gradients, .to = {}};
  if (on_device_) return there;
  now_ = shard % landings_.size();
  Landing& landing = landings_[now_];
  wait_for_stores(landing);
  auto next = landing.sums.begin(), next_tied = landing.tied.begin();
  for (const std::size_t b : plan_.blocks.of_shard(shard)) {
    const std::int64_t elements = plan_.blocks[b].count;
    there.to.push_back({.block = b, .sum = (next++)->tensor(elements)});
    if (plan_.blocks.is_tied(b)) there.to.back().tied = (next_tied++)->tensor(elements);
  }
  return there;
}

void TieredSums::bring(const Arrival& there, Stream& stream)
{
  if (!on_device_ && !adds_rank_by_rank()) copy_to_host(there, stream);
}

void TieredSums::copy_to_host(const Arrival& there, Stream& stream)
{
  stream.synchronise();
  const auto bring_block = [&](const Tensor& to, const Tensor& from, std::int64_t first) {
    tiers_.links().count(TierLink::from_device, to.bytes(), [&] {
      stream.copy(to, from.slice({first, to.elements()}));
      stream.synchronise();
    });
  };
  const Range all = plan_.own[there.shard], tied = intersect(all, sums_of(plan_.step).tied);
  for (const Gradients& g : there.to) {
    const Range elements = plan_.blocks[g.block];
    bring_block(g.sum, there.from[0], elements.first - all.first);
    if (!g.tied.empty()) bring_block(g.tied, there.from[1], elements.first - tied.first);
  }
}

void TieredSums::add(const Arrival& there, Range sequences)
{
  if (on_device_) return on_device_->add(there.shard, sequences, there.from);
  if (!adds_rank_by_rank()) return add_term(there.to, sequences.first / sequences.count);
  const std::int64_t B = sequences.count / received_->ranks();
  for (std::int64_t q = 0; q < received_->ranks(); ++q) {
    wait_for_stores(landings_[now_]);
    copy_to_host({there.shard, received_->from(q, there.shard), there.to}, device_.stream);
    add_term(there.to, sequences.first / B + q);
  }
}

void TieredSums::reduce_scatter(std::size_t shard, const std::vector<Tensor>& gradients, Group& group)
{
  if (on_device_) return on_device_->reduce_scatter(shard, gradients, group);
  if (adds_rank_by_rank()) return received_->receive(shard, gradients, group);
  reduce_scatter_sum(gradients, group);
}

void TieredSums::add_term(const std::vector<Gradients>& gradients, std::int64_t term)
{
  add_waiting(gradients, term);
  for (const Gradients& g : gradients) keep(g, term);
}

void TieredSums::add_waiting(const std::vector<Gradients>& gradients, std::int64_t term)
{
  /// A stored sum, and the tensor to which it is added.
  struct Term {
    BlockStore& level;
    std::size_t block;
    Tensor to;
  };
  std::vector<Term> terms;
  for (const Gradients& g : gradients)
    for (const std::size_t l : micro_batch_order(plan_.adds_in_tree(), term, plan_.terms_of_step()).added) {
      terms.push_back({*levels_[l].sums, g.block, g.sum});
      if (!g.tied.empty()) terms.push_back({*levels_[l].tied, g.block, g.tied});
    }
  const auto slot = [&](std::size_t i) { return buffers_[i % 2].tensor(terms[i].to.elements()); };
  std::array<Pending, 2> comes;
  const auto fetch = [&](std::size_t i) {
    if (i < terms.size() && terms[i].level.home() == Tier::disk)
      comes[i % 2] = terms[i].level.fetch(terms[i].block, slot(i), Tier::host);
  };
  fetch(0);
  for (std::size_t i = 0; i < terms.size(); ++i) {
    fetch(i + 1);
    tiers_.wait(comes[i % 2]);
    const BlockStore& level = terms[i].level;
    host_.kernels->add(terms[i].to, level.home() == Tier::disk ? slot(i) : level.in_place(terms[i].block));
  }
}

void TieredSums::complete(const Gradients& g)
{
  if (!g.tied.empty()) host_.kernels->add(g.sum, g.tied);
  for (const Range& frozen : frozen_ranges(plan_.step.table, plan_.blocks[g.block]))
    host_.stream.zero(g.sum.slice(frozen));
  const Range elements = plan_.blocks[g.block];
  Squares squares;
  for (const Range& counted : plan_.counted_in(elements))
    squares += host_.kernels->squared_norm(g.sum.slice({counted.first - elements.first, counted.count}));
  squares_ += squares;
  if (!std::isfinite(squares.value()))
    note_not_finite(first_not_finite_, host_.kernels, g.sum, plan_.step.table.elements() + elements.first);
}

void TieredSums::keep(const Gradients& g, std::int64_t term)
{
  const bool whole = term + 1 == plan_.terms_of_step();
  if (whole) complete(g);
  if (whole && plan_.updates_early()) return;
  const Level& level = levels_[micro_batch_order(plan_.adds_in_tree(), term, plan_.terms_of_step()).level];
  const auto store = [&](BlockStore& sums, const Tensor& sum) {
    if (sums.home() == Tier::host) return host_.stream.copy(sums.in_place(g.block), sum);
    landings_[now_].stores.push_back(sums.store(g.block, sum, Tier::host));
  };
  if (!whole && !g.tied.empty()) store(*level.tied, g.tied);
  store(*level.sums, g.sum);
}

std::shared_ptr<BlockStore> TieredSums::totals()
{
  for (Landing& landing : landings_) wait_for_stores(landing);
  if (plan_.updates_early()) return nullptr;
  if (!on_device_) return levels_.back().sums;
  totals_ = on_device_->totals();
  return std::make_shared<BlockStore>(tiers_, totals_);
}

TieredSums::Squares TieredSums::squares()
{
  Squares sum = std::exchange(squares_, {});
  for (std::size_t shard = 0; shard < totals_.size(); ++shard) {
    const Range own = plan_.own[shard];
    for (const Range& counted : plan_.counted_in(own))
      sum += device_.kernels->squared_norm(totals_[shard].slice({counted.first - own.first, counted.count}));
  }
  return sum;
}

double TieredSums::squared_norm(Group& group)
{
  Squares sum = squares();
  all_reduce_sum(sum, group);
  return sum.value();
}

}  // namespace rankwise
