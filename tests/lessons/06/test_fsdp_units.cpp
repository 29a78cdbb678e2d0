// The units of lesson 06, and when each of them is gathered and freed.

#include <algorithm>
#include <set>

#include "common/base/error.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/one_machine.hpp"
#include "tests/world.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Units: embedding 704 elements, then (4,288 of attention, 8,416 of an MLP) twice, head 64.
const ModelConfig config = tiny_config(2, 4, 32, 6);

/// The uses of a micro-batch, in order.
std::vector<Use> uses_of(std::int64_t layers, bool training = true, bool recompute = false)
{
  const std::int64_t head = 2 * layers + 1;
  std::vector<Use> uses;
  for (std::int64_t unit = 0; unit < head; ++unit) uses.push_back({unit});
  uses.push_back({head, 0});
  for (std::int64_t layer = layers - 1; training && layer >= 0; --layer) {
    if (recompute) uses.insert(uses.end(), {{2 * layer + 1}, {2 * layer + 2}});
    uses.insert(uses.end(), {{2 * layer + 2}, {2 * layer + 1}});
  }
  return uses;
}

/// The units of the table that each of make_fsdp_units() has; what is replicated has none.
std::vector<Range> units_of(const std::vector<FsdpUnit>& units)
{
  std::vector<Range> runs;
  for (const Bucket& unit : units) runs.push_back(unit.units);
  return runs;
}

/// The numbers of the units that each place of a micro-batch needs.
std::vector<std::set<std::size_t>> needs_of_places(const std::vector<FsdpUnit>& units, const std::vector<Use>& uses)
{
  std::vector<std::set<std::size_t>> places;
  for (const Use& use : uses) {
    std::set<std::size_t> needs;
    for (const std::int64_t of_table : use)
      for (std::size_t unit = 0; unit < units.size(); ++unit)
        if (units[unit].units.contains(of_table)) needs.insert(unit);
    if (places.empty() || places.back() != needs) places.push_back(needs);
  }
  return places;
}

/// The units gathered at place @p s, by the description of plan_gathers().
std::set<std::size_t> there_at(const std::vector<std::set<std::size_t>>& needs, std::size_t s,
                               const GatherOptions& options)
{
  const std::size_t window = std::min(needs.size(), s + static_cast<std::size_t>(options.prefetch) + 1);
  const bool keeps = options.reshard == Reshard::after_backward;
  std::set<std::size_t> there;
  for (std::size_t i = s; i < window; ++i) there.insert(needs[i].begin(), needs[i].end());
  for (std::size_t i = 0; keeps && i < s; ++i)
    for (const std::size_t unit : needs[i])
      for (std::size_t later = s; later < needs.size(); ++later)
        if (needs[later].contains(unit)) there.insert(unit);
  return there;
}

StepPlan plan_of(UnitKind unit, std::int64_t replicated, std::int64_t micro_batch = 0)
{
  const ParameterTable table(config, {}, {0, -1}, replicated);
  return {
      table,      make_fsdp_units(table, unit), DType::f32, DType::f32, Arithmetic(Sums::fast), Algorithm::ring, 12,
      micro_batch};
}

/// Calls @p work for every cut of the model, pass, and way to gather.
template <class Work>
void for_each_case(const Work& work)
{
  for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
    for (const std::int64_t replicated : {0, 128, 192, 512, 1'000'000})
      for (const auto& [training, recompute] : {std::pair(true, false), {true, true}, {false, false}})
        for (const std::int64_t K : {0, 1, 2, 3, 9})
          for (const Reshard reshard : {Reshard::after_forward, Reshard::after_backward}) {
            INFO("unit = " << static_cast<int>(unit) << ", apart = " << replicated << ", training = " << training
                           << ", recompute = " << recompute << ", K = " << K
                           << ", reshard = " << static_cast<int>(reshard));
            work(plan_of(unit, replicated), uses_of(2, training, recompute),
                 GatherOptions{unit, K, reshard, replicated});
          }
}

}  // namespace

TEST_CASE("make_fsdp_units: blocks, branches or all of a model, the last one first")
{
  using Runs = std::vector<Range>;
  CHECK(units_of(plan_of(UnitKind::block, 0).buckets) == Runs{{5, 1}, {3, 2}, {1, 2}, {0, 1}});
  CHECK(units_of(plan_of(UnitKind::branch, 0).buckets) == Runs{{5, 1}, {4, 1}, {3, 1}, {2, 1}, {1, 1}, {0, 1}});
  CHECK(units_of(plan_of(UnitKind::model, 0).buckets) == Runs{{0, 6}});
  // the head's two vectors are replicated, so nothing of it is gathered
  CHECK(units_of(plan_of(UnitKind::block, 128).buckets) == Runs{{3, 2}, {1, 2}, {0, 1}, {0, 0}});
  CHECK(units_of(plan_of(UnitKind::branch, 512).buckets) == Runs{{4, 1}, {3, 1}, {2, 1}, {1, 1}, {0, 0}});
  CHECK(units_of(plan_of(UnitKind::block, 1'000'000).buckets) == Runs{{0, 0}});
}

TEST_CASE("make_fsdp_units: they have every element of the table once")
{
  for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
    for (const std::int64_t replicated : {0, 31, 32, 128, 192, 512, 4096, 1'000'000}) {
      INFO("unit = " << static_cast<int>(unit) << ", apart = " << replicated);
      const StepPlan plan = plan_of(unit, replicated);
      std::vector<int> covered(static_cast<std::size_t>(plan.table.elements()));
      for (const Bucket& bucket : plan.buckets) {
        CHECK(bucket.elements.count > 0);
        CHECK(bucket.units.empty() == (bucket.elements == plan.table.replicated()));
        for (std::int64_t u = bucket.units.first; u < bucket.units.end(); ++u) {
          const Range elements = plan.table.unit_elements(static_cast<int>(u));
          CHECK(intersect(elements, bucket.elements).count == elements.count);
        }
        for (std::int64_t i = bucket.elements.first; i < bucket.elements.end(); ++i)
          ++covered[static_cast<std::size_t>(i)];
      }
      CHECK(std::ranges::count(covered, 1) == plan.table.elements());
    }
}

TEST_CASE("plan_gathers: at each place the units of this place and the next K are gathered, and no others")
{
  for_each_case([](const StepPlan& plan, const std::vector<Use>& uses, const GatherOptions& options) {
    const std::vector<std::set<std::size_t>> needs = needs_of_places(plan.buckets, uses);
    const std::vector<GatherStep> steps = plan_gathers(plan.buckets, uses, options);
    REQUIRE(steps.size() == needs.size());
    std::set<std::size_t> there;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      CAPTURE(s);
      CHECK(std::set(steps[s].needs.begin(), steps[s].needs.end()) == needs[s]);
      for (const std::size_t unit : steps[s].frees) CHECK(there.erase(unit) == 1);
      for (const std::size_t unit : steps[s].gathers) {
        CHECK(there.insert(unit).second);
        CHECK(std::ranges::count(steps[s].frees, unit) == 0);
      }
      CHECK(there == there_at(needs, s, options));
    }
  });
}

TEST_CASE("plan_gathers: units are gathered in the order in which they are needed")
{
  for_each_case([](const StepPlan& plan, const std::vector<Use>& uses, const GatherOptions& options) {
    const std::vector<GatherStep> steps = plan_gathers(plan.buckets, uses, options);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      std::vector<std::size_t> first_needs;
      for (const std::size_t unit : steps[s].gathers) {
        std::size_t place = s;
        while (std::ranges::count(steps[place].needs, unit) == 0) ++place;
        first_needs.push_back(place);
      }
      CHECK(std::ranges::is_sorted(first_needs));
    }
  });
}

TEST_CASE("plan_gathers: its picture")
{
  const std::vector<Use> uses = uses_of(2);
  const auto drawn = [&](UnitKind unit, std::int64_t replicated, std::int64_t K, Reshard reshard) {
    const StepPlan plan = plan_of(unit, replicated);
    return picture(plan.buckets, plan_gathers(plan.buckets, uses, {unit, K, reshard, replicated}));
  };
  CHECK(drawn(UnitKind::block, 0, 1, Reshard::after_forward) ==
        "       unit 0 |G gU  |\n"
        "    units 1-2 |gU  gU|\n"
        "    units 3-4 | gU-U |\n"
        "       unit 5 |  gU  |\n");
  CHECK(drawn(UnitKind::branch, 0, 0, Reshard::after_backward) ==
        "       unit 0 |G----U    |\n"
        "       unit 1 | G-------U|\n"
        "       unit 2 |  G-----U |\n"
        "       unit 3 |   G---U  |\n"
        "       unit 4 |    G-U   |\n"
        "       unit 5 |     G    |\n");
  CHECK(drawn(UnitKind::block, 128, 0, Reshard::after_forward) ==  // of the head nothing is gathered
        "       unit 0 |G  G  |\n"
        "    units 1-2 | G   G|\n"
        "    units 3-4 |  G G |\n");
}

TEST_CASE("places_of: a use that needs the same units as the one before has the same place")
{
  using Places = std::vector<std::size_t>;
  const std::vector<Use> uses = uses_of(2);
  CHECK(places_of(plan_of(UnitKind::branch, 0).buckets, uses) == Places{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(places_of(plan_of(UnitKind::block, 0).buckets, uses) == Places{0, 1, 1, 2, 2, 3, 4, 4, 5, 5});
  CHECK(places_of(plan_of(UnitKind::model, 0).buckets, uses) == Places(10, 0));
  CHECK(places_of(plan_of(UnitKind::block, 1'000'000).buckets, uses) == Places(10, 0));
  for_each_case([](const StepPlan& plan, const std::vector<Use>& pass, const GatherOptions& options) {
    const std::vector<std::size_t> places = places_of(plan.buckets, pass);
    const std::vector<GatherStep> steps = plan_gathers(plan.buckets, pass, options);
    REQUIRE(places.size() == pass.size());
    CHECK(places.back() + 1 == steps.size());
    for (std::size_t u = 0; u < pass.size(); ++u)
      for (const std::size_t unit : steps[places[u]].needs)
        CHECK(std::ranges::any_of(pass[u],
                                  [&](auto of_table) { return plan.buckets[unit].units.contains(of_table); }));
  });
}

TEST_CASE("gathered_bytes: the peak of gathered units")
{
  for_each_case([](const StepPlan& plan, const std::vector<Use>& uses, const GatherOptions& options) {
    const std::vector<std::set<std::size_t>> needs = needs_of_places(plan.buckets, uses);
    std::int64_t most = 0;
    for (std::size_t s = 0; s < needs.size(); ++s) {
      std::int64_t elements = 0;
      for (const std::size_t unit : there_at(needs, s, options)) elements += plan.buckets[unit].elements.count;
      most = std::max(most, elements);
    }
    CHECK(gathered_bytes(plan, plan_gathers(plan.buckets, uses, options)) == 4 * most);
  });
  const StepPlan plan = plan_of(UnitKind::block, 0);
  CHECK(gathered_bytes(plan, plan_gathers(plan.buckets, uses_of(2), {})) == 4 * 2 * (4'288 + 8'416));
}

TEST_CASE("kept_bytes: a rank's shards, and the whole replicated tensors")
{
  const int N = world().ranks();
  for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
    for (const std::int64_t replicated : {0, 128, 1'000'000}) {
      const StepPlan plan = plan_of(unit, replicated);
      std::int64_t elements = plan.table.replicated().count;
      for (const Bucket& bucket : plan.buckets)
        if (!bucket.units.empty()) elements += Partition(bucket.elements.count, N).shard(world().rank()).count;
      CHECK(kept_bytes(plan, plan_gathers(plan.buckets, uses_of(2), {}), world()) == 4 * elements);
    }
}

TEST_CASE("collectives_of: all ranks together send what is gathered and all gradients N-1 times")
{
  for (const int N : {1, 2, 3, 4})
    for (const std::int64_t micro_batch : {0, 1})
      for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
        for (const std::int64_t replicated : {0, 128, 1'000'000}) {
          INFO("N = " << N << ", micro_batch = " << micro_batch << ", unit = " << static_cast<int>(unit)
                      << ", apart = " << replicated);
          const StepPlan plan = plan_of(unit, replicated, micro_batch);
          const std::vector<GatherStep> gathers = plan_gathers(plan.buckets, uses_of(2), {unit, 1});
          std::int64_t gathered = 0, sent = 0;
          for (const GatherStep& step : gathers)
            for (const std::size_t u : step.gathers) gathered += plan.buckets[u].elements.count;
          for (int rank = 0; rank < N; ++rank)
            sent += expected_traffic(collectives_of(plan, gathers, N), one_machine(N), rank).bytes;
          const std::int64_t micro_batches = micro_batch == 0 ? 1 : 12 / N;
          CHECK(sent ==
                4 * (N - 1) * (micro_batches * (gathered + plan.table.elements()) + plan.table.replicated().count));
        }
}

TEST_CASE("describe_units: the number of replicated tensors, and the amount gathered")
{
  const StepPlan plan = plan_of(UnitKind::block, 128);
  const std::string text = describe_units(plan, plan_gathers(plan.buckets, uses_of(2), {.persist = 128}));
  CHECK_THAT(text, Contains("18 tensors, 896 elements, are replicated"));
  CHECK_THAT(text, Contains("unit 0 |"));
}

TEST_CASE("check_gathers: values out of range are refused, with the range")
{
  const std::vector<Use> uses = uses_of(2);
  CHECK_NOTHROW(check_gathers({.prefetch = 0}, uses));
  CHECK_NOTHROW(check_gathers({.prefetch = 9}, uses));
  CHECK_THROWS_AS(check_gathers({.prefetch = 10}, uses), UserError);
  CHECK_THROWS_WITH(check_gathers({.prefetch = 10}, uses), Contains("--prefetch=10") && Contains("10 places"));
  CHECK_THROWS_AS(check_gathers({.prefetch = -1}, uses), UserError);
  CHECK_THROWS_WITH(check_gathers({.persist = -1}, uses), Contains("--persist=-1"));
}
