#include "lessons/07_offload/offload.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "gpt2/adamw.hpp"
#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/05_zero2/shard_sums.hpp"
#include "lessons/07_offload/block_file.hpp"

namespace rankwise {

// ---- Options --------------------------------------------------------------------------------------------------------

namespace {

constexpr std::string_view on_disk = "disk:";

}  // namespace

std::string OffloadOptions::directory() const
{
  return tier.starts_with(on_disk) ? tier.substr(on_disk.size()) : "";
}

Tier OffloadOptions::tier_of(Category category) const
{
  const bool leaves = what == Offload::all || (what == Offload::optimizer && category == Category::optimizer) ||
                      (what == Offload::gradients && category == Category::gradients) ||
                      (what == Offload::parameters && category == Category::parameters);
  if (!leaves) return Tier::device;
  return directory().empty() ? Tier::host : Tier::disk;
}

void declare(OptionTable& table, OffloadOptions& o)
{
  const std::string group = "Offload";
  table.add_choice(group, "offload", o.what,
                   {{"optimizer", Offload::optimizer},
                    {"gradients", Offload::gradients},
                    {"parameters", Offload::parameters},
                    {"all", Offload::all}},
                   "which part of the model state leaves the device");
  table.add(group, "tier", o.tier, "where to: host memory, or one file per rank in a directory", "host|disk:DIR");
  table.add(group, "keep", o.keep, "keep the files in DIR after the run");
}

void check_tier(const OffloadOptions& options)
{
  const bool disk = !options.directory().empty();
  if (options.tier != "host" && !disk)
    throw UserError(fmt::format("--tier={} is not a tier.", options.tier),
                    "Use host for host memory, or disk:DIR for files in the directory DIR, as disk:/tmp.");
  if (options.keep && !disk)
    throw UserError("--keep needs files, and --tier=host has none.", "Leave it out, or use --tier=disk:DIR.");
}

std::string_view name_of(TierLink link)
{
  constexpr std::array<std::string_view, link_count> names{"host to device", "device to host", "disk to host",
                                                           "host to disk"};
  return names[static_cast<std::size_t>(link)];
}

// ---- Plan -----------------------------------------------------------------------------------------------------------

OffloadPlan::OffloadPlan(const OffloadOptions& what, const StepPlan& of_step, std::vector<GatherStep> of_pass,
                         RankOf rank, bool with_clipping)
    : options(what),
      step(of_step),
      gathers(std::move(of_pass)),
      ranks(rank.ranks),
      own(owned_shards(of_step, rank)),
      blocks(own, sums_of(of_step).tied),
      clips(with_clipping)
{
}

bool OffloadPlan::has_master() const
{
  return step.parameters != DType::f32 ||
         (updated_in() == Tier::host && tier_of(Category::parameters) == Tier::device);
}

std::int64_t OffloadPlan::levels() const
{
  return micro_batch_levels(step.tied_separate, micro_batches());
}

std::int64_t OffloadPlan::kept_sums() const
{
  if (!updates_early()) return levels();
  return micro_batches() == 1 ? 0 : std::max<std::int64_t>(levels() - 1, 1);
}

std::int64_t OffloadPlan::disk_block_bytes() const
{
  const std::int64_t largest = bytes_of(DType::f32) * blocks.largest();
  return std::max<std::int64_t>((largest + disk_alignment - 1) / disk_alignment, 1) * disk_alignment;
}

std::int64_t OffloadPlan::landings() const
{
  const Tier home = tier_of(Category::gradients);
  if (home == Tier::device) return 0;
  return home == Tier::disk && kept_sums() > 0 ? 2 : 1;
}

std::int64_t OffloadPlan::landing_blocks() const
{
  std::int64_t most = 0;
  for (std::size_t i = 0; i < own.size(); ++i) most = std::max(most, blocks.of_shard(i).count);
  return landings() * most;
}

std::int64_t OffloadPlan::tied_landing_blocks() const
{
  std::int64_t most = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::int64_t tied = 0;
    const Range numbers = blocks.of_shard(i);
    for (std::int64_t b = numbers.first; b < numbers.end(); ++b)
      tied += blocks.is_tied(static_cast<std::size_t>(b)) ? 1 : 0;
    most = std::max(most, tied);
  }
  return landings() * most;
}

std::int64_t OffloadPlan::window(Tier home, Tier used) const
{
  constexpr std::int64_t least = 3, most_bytes = 32 << 20;
  if (home != Tier::disk || used != Tier::host) return least;
  const auto all = static_cast<std::int64_t>(blocks.count()), bucket_shards = std::ssize(own);
  const std::int64_t of_a_shard = (all + bucket_shards - 1) / bucket_shards;
  return std::max(least, std::min({2 * of_a_shard + 1, all, most_bytes / disk_block_bytes()}));
}

std::int64_t OffloadPlan::slot_bytes(Tier home, Tier used, DType type) const
{
  return home == Tier::disk && used == Tier::host ? disk_block_bytes() : bytes_of(type) * blocks.largest();
}

// ---- Vectors --------------------------------------------------------------------------------------------------------

namespace {

/// A vector that AdamW walks over.
VectorPlan walked(const OffloadPlan& plan, std::string what, Category category, DType type, Tier home, Tier used,
                  bool read, bool written)
{
  VectorPlan v{.what = std::move(what), .category = category, .type = type, .home = home, .used = used};
  if (home == used) return v;
  v.slots = plan.window(home, used);
  v.fetched = read ? 1 : 0;
  v.stored = written ? 1 : 0;
  return v;
}

void add_states(std::vector<VectorPlan>& vectors, const OffloadPlan& plan)
{
  const Tier home = plan.tier_of(Category::optimizer), used = plan.updated_in();
  const auto add = [&](const char* what) {
    vectors.push_back(walked(plan, what, Category::optimizer, DType::f32, home, used, true, true));
    vectors.back().copies = home == Tier::device ? 0 : 1;
  };
  add("first moments");
  add("second moments");
  if (plan.has_master()) add("master weights");
}

void add_parameters(std::vector<VectorPlan>& vectors, const OffloadPlan& plan)
{
  const Tier home = plan.tier_of(Category::parameters);
  vectors.push_back(walked(plan, "parameters", Category::parameters, plan.step.parameters, home, plan.updated_in(),
                           !plan.has_master(), true));
  vectors.back().copies = home == Tier::device ? 0 : 1;
}

/// Sums over micro-batches: each micro-batch fetches the sum that it adds to, and stores the result.
VectorPlan summed(const OffloadPlan& plan, bool tied, std::int64_t passes_that_store)
{
  VectorPlan v{.what = tied ? "tied gradients" : "sums of gradients",
               .category = tied ? further_sums : Category::gradients,
               .type = plan.step.gradients,
               .tied = tied,
               .home = plan.tier_of(Category::gradients),
               .used = Tier::host};
  v.copies = tied ? plan.levels() - 1 : plan.kept_sums();  // the last tied sum is added to the other one
  if (v.home == v.used) return v;
  v.slots = plan.micro_batches() > 1 && !tied ? 2 : 0;  // the tied sums use the same slots
  v.fetched = plan.micro_batches() - 1;
  v.stored = passes_that_store;
  return v;
}

void add_gradients(std::vector<VectorPlan>& vectors, const OffloadPlan& plan)
{
  const Tier home = plan.tier_of(Category::gradients);
  if (home != Tier::device) {
    vectors.push_back(summed(plan, false, plan.micro_batches() - (plan.updates_early() ? 1 : 0)));
    if (plan.blocks.tied_elements() > 0) vectors.push_back(summed(plan, true, plan.micro_batches() - 1));
  }
  if (plan.updates_early()) return;
  vectors.push_back(
      walked(plan, "gradients", Category::gradients, plan.step.gradients, home, plan.updated_in(), true, false));
}

}  // namespace

std::vector<VectorPlan> vectors_of(const OffloadPlan& plan)
{
  std::vector<VectorPlan> vectors;
  add_parameters(vectors, plan);
  add_states(vectors, plan);
  add_gradients(vectors, plan);
  return vectors;
}

// ---- Bytes ----------------------------------------------------------------------------------------------------------

namespace {

/// Elements and blocks of a vector.
std::pair<std::int64_t, std::int64_t> size_of(const OffloadPlan& plan, bool tied)
{
  std::int64_t elements = 0, blocks = 0;
  for (std::size_t b = 0; b < plan.blocks.count(); ++b) {
    if (tied && !plan.blocks.is_tied(b)) continue;
    elements += plan.blocks[b].count;
    ++blocks;
  }
  return {elements, blocks};
}

/// Counts moving a vector or some of its blocks from home to where it is used (@p in), or back.
void count_move(LinkBytes& bytes, const OffloadPlan& plan, const VectorPlan& v, bool in, std::int64_t elements,
                std::int64_t blocks)
{
  const auto add = [&](TierLink link, std::int64_t n) { bytes[static_cast<std::size_t>(link)] += n; };
  if (v.home == Tier::disk) add(in ? TierLink::from_disk : TierLink::to_disk, blocks * plan.disk_block_bytes());
  if ((v.home == Tier::device) != (v.used == Tier::device))
    add(in == (v.used == Tier::device) ? TierLink::to_device : TierLink::from_device, elements * bytes_of(v.type));
}

/// How often a micro-batch gathers each unit.
std::vector<std::int64_t> gathers_of(const OffloadPlan& plan)
{
  std::vector<std::int64_t> times(plan.step.buckets.size());
  for (const GatherStep& place : plan.gathers)
    for (const std::size_t unit : place.gathers) ++times[unit];
  return times;
}

/// Counts the shards fetched for the gathers of a step: of units in every micro-batch, of replicated tensors once.
void count_gathers(LinkBytes& bytes, const OffloadPlan& plan)
{
  const VectorPlan parameters{.what = "parameters of a unit",
                              .category = Category::parameters,
                              .type = plan.step.parameters,
                              .home = plan.tier_of(Category::parameters),
                              .used = Tier::device};
  if (parameters.home == Tier::device) return;
  const std::vector<std::int64_t> of_a_pass = gathers_of(plan);
  for (std::size_t unit = 0; unit < plan.step.buckets.size(); ++unit) {
    const bool replicated = plan.step.buckets[unit].units.empty();
    const std::int64_t times = replicated ? 1 : plan.micro_batches() * of_a_pass[unit];
    count_move(bytes, plan, parameters, true, times * plan.own[unit].count,
               times * plan.blocks.of_shard(unit).count);
  }
}

}  // namespace

std::int64_t disk_blocks(const OffloadPlan& plan)
{
  std::int64_t blocks = 0;
  for (const VectorPlan& v : vectors_of(plan))
    if (v.home == Tier::disk) blocks += v.copies * size_of(plan, v.tied).second;
  return blocks;
}

TierBytes tier_bytes(const OffloadPlan& plan)
{
  TierBytes bytes{};
  const auto in = [&](Tier tier) -> CategoryBytes& { return bytes[static_cast<std::size_t>(tier)]; };
  for (const VectorPlan& v : vectors_of(plan)) {
    const auto [elements, blocks] = size_of(plan, v.tied);
    const std::int64_t of_one =
        v.home == Tier::disk ? blocks * plan.disk_block_bytes() : elements * bytes_of(v.type);
    const std::int64_t first = v.category == Category::gradients ? std::min<std::int64_t>(v.copies, 1) : v.copies;
    in(v.home)[v.category] += first * of_one;
    in(v.home)[further_sums] += (v.copies - first) * of_one;
    in(v.used)[Category::staging] += v.slots * (plan.slot_bytes(v.home, v.used, v.type) + disk_alignment);
  }
  const std::int64_t of_landing =
      plan.slot_bytes(plan.tier_of(Category::gradients), Tier::host, plan.step.gradients);
  in(Tier::host)[Category::staging] +=
      (plan.landing_blocks() + plan.tied_landing_blocks()) * (of_landing + disk_alignment);
  if (disk_blocks(plan) > 0) in(Tier::host)[Category::staging] += 2 * (plan.disk_block_bytes() + disk_alignment);
  return bytes;
}

TierBytes state_bytes(const OffloadPlan& plan, const Arithmetic& arithmetic, RankOf rank)
{
  TierBytes tiers = tier_bytes(plan);
  CategoryBytes& bytes = in_tier(Tier::device, tiers);
  if (plan.tier_of(Category::gradients) == Tier::device) {
    const CategoryBytes sums = ShardSums::bytes(arithmetic, plan.step, rank);
    for (const Category c : {Category::gradients, further_sums}) bytes[c] += sums[c];
  }
  bytes[Category::parameters] = plan.tier_of(Category::parameters) == Tier::device
                                    ? kept_bytes(plan.step, rank)
                                    : bytes_of(plan.step.parameters) * plan.step.table.replicated().count;
  if (plan.tier_of(Category::optimizer) == Tier::device)
    bytes[Category::optimizer] = adamw_bytes(plan.blocks.elements(), plan.step.parameters);
  return tiers;
}

LinkBytes link_traffic(const OffloadPlan& plan)
{
  LinkBytes bytes{};
  // BEGIN EXERCISE 07.2 points=10 "Bytes per link: count the bytes that go over each link in one step. Each "
  //     "vector is fetched and stored as often as vectors_of() says, count_gathers() counts the shards fetched "
  //     "for gathered units, and gradients that are accumulated on the host leave the device in every "
  //     "micro-batch, the second ones of a tied tensor too."
  for (const VectorPlan& v : vectors_of(plan)) {
    const auto [elements, blocks] = size_of(plan, v.tied);
    count_move(bytes, plan, v, true, v.fetched * elements, v.fetched * blocks);
    count_move(bytes, plan, v, false, v.stored * elements, v.stored * blocks);
  }
  count_gathers(bytes, plan);
  if (plan.tier_of(Category::gradients) != Tier::device)
    bytes[static_cast<std::size_t>(TierLink::from_device)] +=
        plan.micro_batches() * bytes_of(plan.step.gradients) *
        (plan.blocks.elements() + plan.blocks.tied_elements());
  // END EXERCISE
  return bytes;
}

}  // namespace rankwise
