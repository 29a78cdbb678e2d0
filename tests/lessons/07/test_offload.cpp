// Where lesson 07 stores its state, and the cost: formulas beside a step whose transfers are added one by one.

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "common/memory/host_memory.hpp"
#include "lessons/parallel/offload/capacity.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/07/offload_plan.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t page = 4096;

bool even_ranks()
{
  return std::has_single_bit(static_cast<unsigned>(world().ranks()));
}

/// Gradients that a rank adds in a step of M micro-batches in exact arithmetic. Shares of 2^k ranks are subtrees, so a
/// micro-batch gives one sum of all ranks; those of other numbers of ranks are added rank by rank.
std::uint64_t terms_of(std::int64_t M)
{
  return static_cast<std::uint64_t>(even_ranks() ? M : M * world().ranks());
}

/// Sums in a tree over them of which one is complete.
std::int64_t levels_of_tree(std::int64_t M)
{
  return static_cast<std::int64_t>(std::bit_width(terms_of(M)));
}

/// Transfers and memory of a step of this rank, added one by one.
class Recount {
 public:
  explicit Recount(const PlanOptions& options) : o(options)
  {
    const ParameterTable table(o.config, {}, {0, -1}, o.persist);
    for (const Bucket& unit : make_fsdp_units(table, UnitKind::branch)) {
      const Range part = Partition(unit.elements.count, world().ranks()).shard(world().rank());
      units.push_back({unit.elements.first + part.first, part.count});
    }
    tied = o.exact ? table.entries().front().elements : Range{};
    for (const Range& unit : units) cut(unit);
    const std::int64_t bytes = 4 * *std::max_element(sizes.begin(), sizes.end());
    disk_block = (bytes + page - 1) / page * page;
    count_memory();
    count_step();
  }

  std::map<TierLink, std::int64_t> links;
  std::map<Tier, std::map<Category, std::int64_t>> memory;
  std::int64_t blocks_on_disk = 0;

 private:
  /// A unit's elements, block by block, cut at the borders of the tied tensor.
  void cut(Range unit)
  {
    std::vector<std::int64_t> of_unit, tied_of_unit;
    std::int64_t run = 0;
    for (std::int64_t i = unit.first; i <= unit.end(); ++i) {
      const bool border =
          i == unit.end() || run == 262'144 || (!tied.empty() && (i == tied.first || i == tied.end()));
      if (border && run > 0) {
        of_unit.push_back(run);
        if (tied.contains(i - 1)) tied_of_unit.push_back(run);
        run = 0;
      }
      ++run;
    }
    sizes.insert(sizes.end(), of_unit.begin(), of_unit.end());
    tied_sizes.insert(tied_sizes.end(), tied_of_unit.begin(), tied_of_unit.end());
    most_of_unit = std::max(most_of_unit, of_unit.size());
    most_tied_of_unit = std::max(most_tied_of_unit, tied_of_unit.size());
    of_units.push_back(of_unit);
  }

  Tier tier_if(Offload what) const { return o.what == what || o.what == Offload::all ? o.tier : Tier::device; }
  Tier states() const { return tier_if(Offload::optimizer); }
  Tier gradients() const { return tier_if(Offload::gradients); }
  Tier parameters() const { return tier_if(Offload::parameters); }
  Tier adamw() const { return states() == Tier::device ? Tier::device : Tier::host; }
  bool master() const
  {
    if (o.parameters == DType::bf16) return true;
    return adamw() == Tier::host && parameters() == Tier::device;
  }
  bool early() const { return o.what == Offload::all && !o.clips; }
  std::int64_t terms() const
  {
    return o.exact ? static_cast<std::int64_t>(terms_of(o.micro_batches)) : o.micro_batches;
  }
  /// Sums that wait in a binary tree of all terms, the last one included.
  std::int64_t levels() const
  {
    std::int64_t count = 1;
    for (std::int64_t m = terms(); o.exact && m > 1; m /= 2) ++count;
    return count;
  }
  /// The highest level of a tree with 2^k leaves holds the complete sum only.
  std::int64_t partial_levels() const { return levels() - (o.exact && !even_ranks() ? 0 : 1); }

  /// Moves a block from one tier to another.
  void move(Tier from, Tier to, std::int64_t elements, DType type)
  {
    if (from == to) return;
    if (from == Tier::disk) links[TierLink::from_disk] += disk_block;
    if (to == Tier::disk) links[TierLink::to_disk] += disk_block;
    if (to == Tier::device) links[TierLink::to_device] += elements * bytes_of(type);
    if (from == Tier::device) links[TierLink::from_device] += elements * bytes_of(type);
  }
  void move(Tier from, Tier to, const std::vector<std::int64_t>& blocks, DType type)
  {
    for (const std::int64_t elements : blocks) move(from, to, elements, type);
  }

  void count_step()
  {
    const std::int64_t last = std::ssize(units) - 1;
    for (std::int64_t pass = 0; pass < o.micro_batches; ++pass) {
      for (std::int64_t unit = 0; unit <= last; ++unit) {
        // Forward and backward; the head (unit 0, unless its tensors are replicated) in one go. What is replicated is the last.
        const bool replicated = o.persist > 0 && unit == last, head = o.persist == 0 && unit == 0;
        for (int times = replicated ? 0 : head ? 1 : 2; times > 0; --times)
          move(parameters(), Tier::device, of_units[static_cast<std::size_t>(unit)], o.parameters);
      }
    }
    for (std::int64_t term = 0; gradients() != Tier::device && term < terms(); ++term) add(term);
    for (int vector = 0; vector < (master() ? 3 : 2); ++vector) {
      move(states(), adamw(), sizes, DType::f32);
      move(adamw(), states(), sizes, DType::f32);
    }
    if (!master()) move(parameters(), adamw(), sizes, o.parameters);
    move(adamw(), parameters(), sizes, o.parameters);
    if (!early()) move(gradients(), adamw(), sizes, o.gradients);
    if (o.persist > 0) move(parameters(), Tier::device, of_units.back(), o.parameters);
  }

  void add(std::int64_t term)
  {
    const bool last = term + 1 == terms();
    move(Tier::device, Tier::host, sizes, o.gradients);
    move(Tier::device, Tier::host, tied_sizes, o.gradients);
    std::int64_t waiting = term > 0 ? 1 : 0;  // sums that this term is added to
    if (o.exact)
      for (waiting = 0; (term >> waiting) % 2 == 1;) ++waiting;
    if (o.exact && last) waiting = std::popcount(static_cast<std::uint64_t>(term));
    for (std::int64_t sum = 0; sum < waiting; ++sum) {
      move(gradients(), Tier::host, sizes, o.gradients);
      move(gradients(), Tier::host, tied_sizes, o.gradients);
    }
    if (!last || !early()) move(Tier::host, gradients(), sizes, o.gradients);
    if (!last) move(Tier::host, gradients(), tied_sizes, o.gradients);
  }

  void keep(Tier tier, Category category, const std::vector<std::int64_t>& blocks, DType type)
  {
    if (tier == Tier::device) return;  // counted as in lesson 06
    for (const std::int64_t elements : blocks)
      memory[tier][category] += tier == Tier::disk ? disk_block : elements * bytes_of(type);
    if (tier == Tier::disk) blocks_on_disk += std::ssize(blocks);
  }
  /// A slot for a block where it is used, with what aligning it takes.
  void slot(Tier home, Tier used, DType type, std::size_t count)
  {
    const std::int64_t bytes = home == Tier::disk && used == Tier::host
                                   ? disk_block
                                   : bytes_of(type) * *std::max_element(sizes.begin(), sizes.end());
    memory[used][Category::staging] += static_cast<std::int64_t>(count) * (bytes + page);
  }
  void slots_for_walk(Tier home, DType type)
  {
    // With a disk one shard is fetched and one is stored, up to all blocks or 32 MiB.
    const std::size_t of_a_shard = (sizes.size() + units.size() - 1) / units.size(),
                      many = std::min(
                          {2 * of_a_shard + 1, sizes.size(), static_cast<std::size_t>((32 << 20) / disk_block)});
    if (home != adamw())
      slot(home, adamw(), type, home == Tier::disk && adamw() == Tier::host ? std::max<std::size_t>(many, 3) : 3);
  }

  void count_memory()
  {
    for (int vector = 0; vector < (master() ? 3 : 2); ++vector) {
      keep(states(), Category::optimizer, sizes, DType::f32);
      slots_for_walk(states(), DType::f32);
    }
    keep(parameters(), Category::parameters, sizes, o.parameters);
    slots_for_walk(parameters(), o.parameters);
    // With early updates the complete sum is used on arrival: in a tree the highest level holds nothing else.
    const std::int64_t kept = !early() ? levels() : terms() > 1 ? std::max<std::int64_t>(partial_levels(), 1) : 0;
    if (kept > 0) keep(gradients(), Category::gradients, sizes, o.gradients);
    if (!early()) slots_for_walk(gradients(), o.gradients);
    for (std::int64_t level = 1; level < kept; ++level) keep(gradients(), Category::exact_sums, sizes, o.gradients);
    for (std::int64_t level = 0; level < partial_levels(); ++level)
      keep(gradients(), Category::exact_sums, tied_sizes, o.gradients);
    if (gradients() != Tier::device) {
      const bool written = gradients() == Tier::disk && (!early() || terms() > 1);
      const std::size_t bucket_shards = written ? 2 : 1;  // one comes, one is written
      slot(gradients(), Tier::host, o.gradients, bucket_shards * (most_of_unit + most_tied_of_unit));
    }
    if (gradients() == Tier::disk && terms() > 1) slot(Tier::disk, Tier::host, o.gradients, 2);
    if (o.tier == Tier::disk) slot(Tier::disk, Tier::host, DType::f32, 2);  // between disk and device
  }

  PlanOptions o;
  std::vector<Range> units;
  Range tied;
  std::vector<std::vector<std::int64_t>> of_units;
  std::vector<std::int64_t> sizes, tied_sizes;
  std::size_t most_of_unit = 0, most_tied_of_unit = 0;
  std::int64_t disk_block = 0;
};

/// Calls @p work for every kind of plan that this page knows.
template <class Work>
void for_all_plans(const Work& work)
{
  for (const Offload what : all_offloads)
    for (const Tier tier : {Tier::host, Tier::disk})
      for (const std::int64_t M : {1, 2, 4})
        for (const bool exact : {false, true})
          for (const auto& [parameters, gradients] :
               {std::pair(DType::f32, DType::f32), {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}})
            for (const std::int64_t persist : {0, 64}) {
              for (const bool clips : {true, false}) {
                PlanOptions options{what, tier, M, exact, parameters, gradients, persist};
                options.clips = clips;
                INFO(text_of(options));
                work(options);
              }
            }
}

/// The properties of a vector's plan that a test compares.
std::string text_of(const VectorPlan& v)
{
  const auto name = [](Tier tier) { return std::string(name_of(tier)); };
  return v.what + (v.tied ? " (tied)" : "") + ": " + name(v.home) + " > " + name(v.used) + ", copies " +
         std::to_string(v.copies) + ", slots " + std::to_string(v.slots) + ", fetched " +
         std::to_string(v.fetched) + ", stored " + std::to_string(v.stored);
}

std::vector<std::string> texts_of(const PlanOptions& options)
{
  std::vector<std::string> texts;
  for (const VectorPlan& vector : vectors_of(make_plan(options))) texts.push_back(text_of(vector));
  return texts;
}

}  // namespace

TEST_CASE("OffloadOptions: which state leaves the device, and for which tier")
{
  const auto tiers = [](Offload what, const std::string& tier) {
    const OffloadOptions options{what, tier, false};
    return std::vector<Tier>{options.tier_of(Category::parameters), options.tier_of(Category::gradients),
                             options.tier_of(Category::optimizer), options.tier_of(Category::activations)};
  };
  constexpr Tier device = Tier::device, host = Tier::host, disk = Tier::disk;
  CHECK(tiers(Offload::optimizer, "host") == std::vector{device, device, host, device});
  CHECK(tiers(Offload::gradients, "host") == std::vector{device, host, device, device});
  CHECK(tiers(Offload::parameters, "disk:a") == std::vector{disk, device, device, device});
  const std::vector<Tier> all = tiers(Offload::all, "disk:/some/where");
  CHECK(std::vector(all.begin(), all.begin() + 3) == std::vector{disk, disk, disk});
  CHECK(OffloadOptions{Offload::all, "disk:/some/where", false}.directory() == "/some/where");
  CHECK(OffloadOptions{Offload::all, "host", false}.directory().empty());
}

TEST_CASE("check_tier: refuses unknown tiers, and options that need files")
{
  const auto call = [](const std::string& tier, bool keep) { check_tier({Offload::all, tier, keep}); };
  CHECK_NOTHROW(call("host", false));
  CHECK_NOTHROW(call("disk:/tmp", true));
  for (const std::string tier : {"disk", "disk:", "tape", "", "Host", "host:/tmp"}) {
    CHECK_THROWS_AS(call(tier, false), UserError);
    CHECK_THROWS_WITH(call(tier, false), Contains("--tier=" + tier + " is not a tier") && Contains("disk:DIR"));
  }
  CHECK_THROWS_WITH(call("host", true), Contains("--keep needs files"));
}

TEST_CASE("OffloadPlan: AdamW runs in the tier of its states, with master weights if parameters are elsewhere")
{
  const auto plan = [](Offload what, Tier tier, DType type) {
    return make_plan({.what = what, .tier = tier, .parameters = type});
  };
  for (const Tier tier : {Tier::host, Tier::disk}) {
    for (const auto& [what, on_host] : {std::pair(Offload::optimizer, true),
                                        {Offload::gradients, false},
                                        {Offload::parameters, false},
                                        {Offload::all, true}}) {
      INFO(testing::name_of(what) << " on " << rankwise::name_of(tier));
      CHECK(plan(what, tier, DType::f32).updated_in() == (on_host ? Tier::host : Tier::device));
      CHECK(plan(what, tier, DType::f32).has_master() == (what == Offload::optimizer));
      CHECK(plan(what, tier, DType::bf16).has_master());
    }
  }
}

TEST_CASE("OffloadPlan: the number of stored sums, and of landing buffers for gradients")
{
  const auto plan = [](std::int64_t M, bool separate, Tier tier = Tier::host, Offload what = Offload::all) {
    return make_plan({.what = what, .tier = tier, .micro_batches = M, .exact = separate});
  };
  for (const std::int64_t M : {1, 2, 4, 8}) {
    CHECK(plan(M, false).micro_batches() == M);
    CHECK(plan(M, false).levels() == 1);
    CHECK(plan(M, true).levels() == levels_of_tree(M));
  }
  CHECK(plan(1, false, Tier::host).landings() == 1);
  CHECK(plan(1, false, Tier::disk).landings() == 2);
  CHECK(plan(1, false, Tier::disk, Offload::optimizer).landings() == 0);
  CHECK(plan(1, false).landing_blocks(false) == 1);
  CHECK(plan(1, false).landing_blocks(true) == 0);
  // The embedding's unit has the tied tensor's block and another; this rank may own elements of one of them only.
  const OffloadPlan separate = plan(1, true, Tier::disk);
  const auto of_embedding = std::ssize(separate.blocks.of_shard(separate.own.size() - 1));
  CHECK(separate.landing_blocks(false) == of_embedding);
  CHECK(separate.landing_blocks(true) == (separate.blocks.tied_elements() > 0 ? 1 : 0));
}

TEST_CASE("OffloadPlan: updates are early without clipping and with all state off the device")
{
  for (const Offload what : all_offloads)
    for (const bool clips : {false, true})
      CHECK(make_plan({.what = what, .clips = clips}).updates_early() == (what == Offload::all && !clips));
  const auto kept = [](std::int64_t M, bool separate, bool clips) {
    return make_plan({.micro_batches = M, .exact = separate, .clips = clips}).kept_sums();
  };
  CHECK(kept(1, false, true) == 1);
  CHECK(kept(1, false, false) == 0);
  CHECK(kept(4, false, false) == 1);
  CHECK(kept(4, true, true) == levels_of_tree(4));
  // The last level of a tree of 2^k sums has only the complete sum, which is not kept.
  CHECK(kept(4, true, false) == levels_of_tree(4) - (even_ranks() ? 1 : 0));
  CHECK(kept(1, true, false) == levels_of_tree(1) - (even_ranks() ? 1 : 0));
}

TEST_CASE("OffloadPlan: no unit is gathered after its last use, which computes its gradients")
{
  // So a block may be updated as soon as its sum of gradients is complete, in the same backward pass.
  for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
    for (const std::int64_t prefetch : {0, 1, 2})
      for (const Reshard reshard : {Reshard::after_forward, Reshard::after_backward})
        for (const bool recompute : {false, true}) {
          const ParameterTable table(tiny_config(3, 4, 32, 6));
          const std::vector<FsdpUnit> units = make_fsdp_units(table, unit);
          std::vector<Use> uses = uses_of_pass(tiny_config(3, 4, 32, 6));
          if (recompute)
            for (std::size_t i = uses.size(); i-- > 8;)  // behind the head: units 6, 5, .. 1
              if (uses[i].front() % 2 == 0) {
                const std::int64_t u = uses[i].front();
                const std::vector<Use> again{{u - 1}, {u}};
                uses.insert(uses.begin() + static_cast<std::ptrdiff_t>(i), again.begin(), again.end());
              }
          const std::vector<GatherStep> plan =
              plan_gathers(units, uses, {.unit = unit, .prefetch = prefetch, .reshard = reshard});
          const std::vector<std::size_t> places = places_of(units, uses);
          for (std::size_t number = 0; number < units.size(); ++number) {
            std::size_t gathered = 0,
                        made = 0;  // the last place that gathers it, and where its gradients are complete
            for (std::size_t place = 0; place < plan.size(); ++place)
              if (std::ranges::count(plan[place].gathers, number) > 0) gathered = place;
            for (std::size_t i = 0; i < uses.size(); ++i)
              if (uses[i].front() == units[number].units.first) made = places[i];
            if (units[number].units.first == 0)
              made = plan.size();  // the embedding's come last, and it is used before
            CHECK(gathered <= made);
          }
        }
}

TEST_CASE("OffloadPlan: a block on disk holds the largest, in whole pages")
{
  const OffloadPlan plan = make_plan({.tier = Tier::disk});
  const std::int64_t largest = (8'416 + world().ranks() - 1) / world().ranks();
  if (world().rank() == 0) CHECK(plan.disk_block_bytes() == (4 * largest + page - 1) / page * page);
  CHECK(plan.slot_bytes(Tier::disk, Tier::host, DType::bf16) == plan.disk_block_bytes());
  CHECK(plan.slot_bytes(Tier::disk, Tier::device, DType::bf16) == 2 * plan.blocks.largest());
  CHECK(plan.slot_bytes(Tier::host, Tier::device, DType::f32) == 4 * plan.blocks.largest());
}

TEST_CASE("OffloadPlan: this rank's shards and their blocks")
{
  const OffloadPlan plan = make_plan({.exact = true});
  CHECK(plan.ranks == world().ranks());
  CHECK(plan.own == owned_shards(plan.step, world()));
  CHECK(plan.blocks.elements() == elements_of(plan.own));
  CHECK(plan.blocks.tied_elements() == intersect(plan.own.back(), {0, 512}).count);
  CHECK(make_plan({}).blocks.tied_elements() == 0);
}

TEST_CASE("vectors_of: how often each vector is fetched and stored in a step")
{
  using Texts = std::vector<std::string>;
  CHECK(texts_of({.what = Offload::optimizer}) ==
        Texts{"parameters: device > host, copies 0, slots 3, fetched 0, stored 1",
              "first moments: host > host, copies 1, slots 0, fetched 0, stored 0",
              "second moments: host > host, copies 1, slots 0, fetched 0, stored 0",
              "master weights: host > host, copies 1, slots 0, fetched 0, stored 0",
              "gradients: device > host, copies 0, slots 3, fetched 1, stored 0"});
  CHECK(texts_of({.what = Offload::parameters}) ==
        Texts{"parameters: host > device, copies 1, slots 3, fetched 1, stored 1",
              "first moments: device > device, copies 0, slots 0, fetched 0, stored 0",
              "second moments: device > device, copies 0, slots 0, fetched 0, stored 0",
              "gradients: device > device, copies 0, slots 0, fetched 0, stored 0"});
  CHECK(texts_of({.what = Offload::gradients, .tier = Tier::disk, .micro_batches = 4}) ==
        Texts{"parameters: device > device, copies 0, slots 0, fetched 0, stored 0",
              "first moments: device > device, copies 0, slots 0, fetched 0, stored 0",
              "second moments: device > device, copies 0, slots 0, fetched 0, stored 0",
              "sums of gradients: disk > host, copies 1, slots 2, fetched 3, stored 4",
              "gradients: disk > device, copies 0, slots 3, fetched 1, stored 0"});
  CHECK(texts_of({.tier = Tier::disk, .clips = false}) ==
        Texts{"parameters: disk > host, copies 1, slots 3, fetched 1, stored 1",
              "first moments: disk > host, copies 1, slots 3, fetched 1, stored 1",
              "second moments: disk > host, copies 1, slots 3, fetched 1, stored 1",
              "sums of gradients: disk > host, copies 0, slots 0, fetched 0, stored 0"});
  if (world().ranks() > 1) return;  // who owns tied elements, if there are several?
  // The tied tensor is a block of its own: a shard has more than one.
  CHECK(texts_of({.tier = Tier::disk, .micro_batches = 4, .exact = true}) ==
        Texts{"parameters: disk > host, copies 1, slots 5, fetched 1, stored 1",
              "first moments: disk > host, copies 1, slots 5, fetched 1, stored 1",
              "second moments: disk > host, copies 1, slots 5, fetched 1, stored 1",
              "sums of gradients: disk > host, copies 3, slots 2, fetched 3, stored 4",
              "tied gradients (tied): disk > host, copies 2, slots 0, fetched 3, stored 3",
              "gradients: disk > host, copies 0, slots 5, fetched 1, stored 0"});
}

TEST_CASE("link_traffic: equals the bytes of a step's transfers, added one by one")
{
  for_all_plans([](const PlanOptions& options) {
    Recount expected(options);
    const LinkBytes bytes = link_traffic(make_plan(options));
    for (const TierLink link :
         {TierLink::to_device, TierLink::from_device, TierLink::from_disk, TierLink::to_disk}) {
      INFO(rankwise::name_of(link));
      CHECK(bytes[static_cast<std::size_t>(link)] == expected.links[link]);
    }
  });
}

TEST_CASE("tier_bytes: the bytes stored in each tier, vector by vector")
{
  for_all_plans([](const PlanOptions& options) {
    Recount expected(options);
    const OffloadPlan plan = make_plan(options);
    const TierBytes bytes = tier_bytes(plan);
    for (const Tier tier : {Tier::device, Tier::host, Tier::disk})
      for (int c = 0; c < category_count; ++c) {
        const auto category = static_cast<Category>(c);
        INFO(rankwise::name_of(tier) << ", " << rankwise::name_of(category));
        CHECK(bytes[static_cast<std::size_t>(tier)][category] == expected.memory[tier][category]);
      }
    CHECK(disk_blocks(plan) == expected.blocks_on_disk);
  });
}

TEST_CASE("tier_bytes, link_traffic: blocks of shards that are larger than one")
{
  for (const Tier tier : {Tier::host, Tier::disk}) {
    PlanOptions options{.tier = tier, .micro_batches = 2, .exact = true, .config = tiny_config(1, 8, 256, 6)};
    Recount expected(options);
    const OffloadPlan plan = make_plan(options);
    const TierBytes bytes = tier_bytes(plan);
    for (const Tier in : {Tier::device, Tier::host, Tier::disk})
      for (int c = 0; c < category_count; ++c)
        CHECK(bytes[static_cast<std::size_t>(in)][static_cast<Category>(c)] ==
              expected.memory[in][static_cast<Category>(c)]);
    for (std::size_t link = 0; link < link_count; ++link)
      CHECK(link_traffic(plan)[link] == expected.links[static_cast<TierLink>(link)]);
  }
}

TEST_CASE("tier_bytes, link_traffic: figures of one rank")
{
  if (world().ranks() > 1) return;
  constexpr std::int64_t P = 26'176, head = 64, S = 36'864;  // 4 x 8,416 bytes take nine pages
  const auto host = [](const PlanOptions& o) { return tier_bytes(make_plan(o))[1]; };
  const auto disk = [](const PlanOptions& o) { return tier_bytes(make_plan(o))[2]; };
  CHECK(host({})[Category::optimizer] == 8 * P);
  CHECK(host({})[Category::parameters] == 4 * P);
  CHECK(host({})[Category::gradients] == 4 * P);
  CHECK(host({})[Category::staging] == 4 * 8'416 + page);
  CHECK(disk({}).total() == 0);
  CHECK(disk({.tier = Tier::disk}).total() == 4 * 6 * S);
  CHECK(disk({.tier = Tier::disk})[Category::optimizer] == 2 * 6 * S);
  CHECK(host({.tier = Tier::disk}).total() == (4 * 3 + 2 + 2) * (S + page));
  // Both gathers of a pass, of the head one; gradients of a pass. With a disk AdamW reads 16 bytes and writes 12.
  CHECK(link_traffic(make_plan({.micro_batches = 2})) == LinkBytes{2 * 4 * (2 * P - head), 2 * 4 * P, 0, 0});
  CHECK(link_traffic(make_plan({.tier = Tier::disk})) ==
        LinkBytes{4 * (2 * P - head), 4 * P, (11 + 4 * 6) * S, (6 + 3 * 6) * S});
}

TEST_CASE("check_host_capacity: compares the needs of all ranks of a machine with its memory")
{
  const std::int64_t has = memory_for_each(1).bytes;
  CHECK(has > 1'000'000);
  CHECK(has < std::numeric_limits<std::int64_t>::max());
  CategoryBytes planned;
  planned[Category::optimizer] = has / 4;
  planned[Category::staging] = 1000;
  CHECK_NOTHROW(check_host_capacity(planned, 0, 2, "Do something."));
  CHECK_NOTHROW(check_host_capacity(planned, has / 4, 1, "Do something."));
  CHECK_THROWS_AS(check_host_capacity(planned, 0, 8, "Do something."), UserError);
  CHECK_THROWS_WITH(check_host_capacity(planned, 0, 8, "Do something."),
                    Contains("to each of 8 ranks") && Contains("optimizer") && Contains("Do something."));
  CHECK_THROWS_WITH(check_host_capacity(planned, has, 1, "Do something."), Contains("for the device"));
}
