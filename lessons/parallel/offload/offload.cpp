#include "lessons/parallel/offload/offload.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "lessons/parallel/offload/block_file.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"

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
                   {{"none", Offload::none},
                    {"optimizer", Offload::optimizer},
                    {"gradients", Offload::gradients},
                    {"parameters", Offload::parameters},
                    {"all", Offload::all}},
                   "which part of the model state leaves the device");
  table.add(group, "tier", o.tier, "where to: host memory, or one file per rank in a directory", "host|disk:DIR");
  table.add(group, "keep", o.keep, "keep the files in DIR after the run");
}

void check_tier(const OffloadOptions& o)
{
  const bool disk = !o.directory().empty();
  if (o.tier != "host" && !disk)
    throw UserError(fmt::format("--tier={} is not a tier.", o.tier),
                    "Use host for host memory, or disk:DIR for files in the directory DIR, as disk:/tmp.");
  if (disk && o.what == Offload::none)
    throw UserError(
        fmt::format("--tier={} stores nothing: with --offload=none all model state stays on the device.", o.tier),
        "Use --offload=optimizer, gradients, parameters or all, or leave --tier out.");
  if (o.keep && !disk)
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
      clips(with_clipping),
      counted(own)
{
}

std::vector<Range> OffloadPlan::counted_in(Range elements) const
{
  std::vector<Range> ranges;
  for (const Range& range : counted)
    if (const Range both = intersect(range, elements); !both.empty()) ranges.push_back(both);
  return ranges;
}

bool OffloadPlan::has_master() const
{
  return step.parameters != DType::f32 ||
         (updated_in() == Tier::host && tier_of(Category::parameters) == Tier::device);
}

std::int64_t OffloadPlan::levels() const
{
  return micro_batch_levels(adds_in_tree(), terms_of_step());
}

std::int64_t OffloadPlan::partial_levels() const
{
  const bool whole_tree = std::has_single_bit(static_cast<std::uint64_t>(terms_of_step()));
  return adds_in_tree() && !whole_tree ? levels() : levels() - 1;
}

std::int64_t OffloadPlan::kept_sums() const
{
  if (!updates_early()) return levels();
  return terms_of_step() == 1 ? 0 : std::max<std::int64_t>(partial_levels(), 1);
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

std::int64_t OffloadPlan::landing_blocks(bool tied) const
{
  std::int64_t most = 0;
  for (std::size_t i = 0; i < own.size(); ++i)
    most = std::max<std::int64_t>(
        most, std::ranges::count_if(blocks.of_shard(i), [&](std::size_t b) { return !tied || blocks.is_tied(b); }));
  return most;
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

std::vector<VectorPlan> vectors_of(const OffloadPlan& plan)
{
  std::vector<VectorPlan> vectors;
  // AdamW walks over these.
  const auto walk = [&](const char* what, Category category, DType type, std::int64_t copies, bool read,
                        bool written) {
    const Tier home = plan.tier_of(category), used = plan.updated_in();
    const bool moves = home != used;
    vectors.push_back({.what = what,
                       .category = category,
                       .type = type,
                       .home = home,
                       .used = used,
                       .copies = home == Tier::device ? 0 : copies,
                       .slots = moves ? plan.window(home, used) : 0,
                       .fetched = moves && read ? 1 : 0,
                       .stored = moves && written ? 1 : 0});
  };
  // Sums over micro-batches: each term fetches the sum that it adds to, and stores the result.
  const auto sum = [&](bool tied, std::int64_t copies, std::int64_t passes_that_store) {
    const std::int64_t passes = plan.terms_of_step();
    const Tier home = plan.tier_of(Category::gradients);
    const bool moves = home != Tier::host;
    vectors.push_back({.what = tied ? "tied gradients" : "sums of gradients",
                       .category = tied ? further_sums : Category::gradients,
                       .type = plan.step.gradients,
                       .tied = tied,
                       .home = home,
                       .used = Tier::host,
                       .copies = copies,
                       .slots = moves && passes > 1 && !tied ? 2 : 0,  // the tied sums use the same slots
                       .fetched = moves ? passes - 1 : 0,
                       .stored = moves ? passes_that_store : 0});
  };
  walk("parameters", Category::parameters, plan.step.parameters, 1, !plan.has_master(), true);
  walk("first moments", Category::optimizer, DType::f32, 1, true, true);
  walk("second moments", Category::optimizer, DType::f32, 1, true, true);
  if (plan.has_master()) walk("master weights", Category::optimizer, DType::f32, 1, true, true);
  if (plan.tier_of(Category::gradients) != Tier::device) {
    sum(false, plan.kept_sums(), plan.terms_of_step() - (plan.updates_early() ? 1 : 0));
    // The last tied sum is added to the other one.
    if (plan.blocks.tied_elements() > 0) sum(true, plan.partial_levels(), plan.terms_of_step() - 1);
  }
  if (!plan.updates_early()) walk("gradients", Category::gradients, plan.step.gradients, 0, true, false);
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

/// Counts the shards fetched for the gathers of a step: in every micro-batch, of units that stay whole once.
void count_gathers(LinkBytes& bytes, const OffloadPlan& plan)
{
  VectorPlan parameters = vectors_of(plan).front();
  parameters.used = Tier::device;
  const auto count = [&](std::size_t unit, std::int64_t times) {
    count_move(bytes, plan, parameters, true, times * plan.own[unit].count,
               times * std::ssize(plan.blocks.of_shard(unit)));
  };
  for (const GatherStep& place : plan.gathers)
    for (const std::size_t unit : place.gathers) count(unit, plan.micro_batches());
  for (std::size_t unit = 0; unit < plan.own.size(); ++unit)
    if (stays_whole(plan.gathers, unit)) count(unit, 1);
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
  for (const VectorPlan& v : vectors_of(plan)) {
    const auto [elements, blocks] = size_of(plan, v.tied);
    const std::int64_t of_one =
        v.home == Tier::disk ? blocks * plan.disk_block_bytes() : elements * bytes_of(v.type);
    const std::int64_t first = v.category == Category::gradients ? std::min<std::int64_t>(v.copies, 1) : v.copies;
    in_tier(v.home, bytes)[v.category] += first * of_one;
    in_tier(v.home, bytes)[further_sums] += (v.copies - first) * of_one;
    in_tier(v.used, bytes)[Category::staging] +=
        v.slots * (plan.slot_bytes(v.home, v.used, v.type) + disk_alignment);
  }
  const std::int64_t of_landing =
      plan.slot_bytes(plan.tier_of(Category::gradients), Tier::host, plan.step.gradients);
  in_tier(Tier::host, bytes)[Category::staging] +=
      plan.landings() * (plan.landing_blocks(false) + plan.landing_blocks(true)) * (of_landing + disk_alignment);
  if (disk_blocks(plan) > 0)
    in_tier(Tier::host, bytes)[Category::staging] += 2 * (plan.disk_block_bytes() + disk_alignment);
  return bytes;
}

LinkBytes link_traffic(const OffloadPlan& plan)
{
  LinkBytes bytes{};
  // BEGIN EXERCISE 07.2
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
  // Where the gradients of all ranks are added one by one, those of the other ranks leave the device too.
  if (plan.tier_of(Category::gradients) != Tier::device)
    bytes[static_cast<std::size_t>(TierLink::from_device)] +=
        (plan.terms_of_step() - plan.micro_batches()) * bytes_of(plan.step.gradients) *
        (plan.blocks.elements() + plan.blocks.tied_elements());
  return bytes;
}

}  // namespace rankwise
