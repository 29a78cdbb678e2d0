// The parameters of lesson 07: each use sees the current values of all ranks, whichever tier stores the shards.

#include <cstdint>
#include <vector>

#include "lessons/parallel/offload/offloaded_parameters.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/lessons/07/tiered_rank.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

const std::vector<Use> training = uses_of_pass(tiny_config(2, 4, 32, 6));

/// Parameters that are sharded over the ranks and stored in a tier, and their expected values.
struct Offloaded {
  Offloaded(const PlanOptions& o, std::int64_t prefetch, Reshard reshard = Reshard::after_forward)
      : options{.unit = UnitKind::branch, .prefetch = prefetch, .reshard = reshard, .persist = o.persist},
        type(o.parameters),
        rank(o)
  {
    update();
  }

  /// Gives every parameter another value; each rank writes those that it owns, in their tier.
  void update()
  {
    ++updates;
    all = rank.lab.filled(type, {table.elements()}, updates);
    rank.put_all(*parameters.store(), all);
    parameters.bring_whole();
    for (const Tensor& whole : parameters.whole()) all_gather(whole, test.group);
  }

  /// Whether these are the tensors of a unit, as they are now.
  bool now(const std::vector<Tensor>& tensors, std::int64_t unit) const
  {
    const auto number = static_cast<int>(unit);
    const std::vector<Tensor> expected =
        unit_tensors(table, number, all.slice(table.unit_elements(number)), all.slice(table.replicated()));
    bool same = tensors.size() == expected.size();
    for (std::size_t i = 0; same && i < expected.size(); ++i)
      same = tensors[i].shape() == expected[i].shape() && different_bits(tensors[i], expected[i]) == 0;
    return same;
  }

  /// A whole pass. @return whether every use sees the parameters as they are now.
  bool pass()
  {
    bool same = true;
    parameters.begin(training);
    for (const Use& use : training) {
      same = now(parameters.use(use.front()), use.front()) && same;
      for (const std::int64_t unit : use) same = now(parameters.of(unit), unit) && same;
    }
    parameters.end();
    return same;
  }

  GatherOptions options;
  DType type;
  TieredRank rank;
  GroupForTest test{Algorithm::ring};
  CommunicationQueue queue{test.group, rank.time};
  const ParameterTable& table = rank.plan.step.table;
  OffloadedParameters parameters{rank.plan, rank.tiers, *rank.stream, queue, table, options};
  std::uint32_t updates = 0;
  Tensor all;  // the same on all ranks
};

/// Tier of this rank's parameters: the device where only the optimizer leaves it.
PlanOptions parameters_in(Tier tier, DType type = DType::f32, std::int64_t persist = 0)
{
  return {.what = tier == Tier::device ? Offload::optimizer : Offload::parameters,
          .tier = tier == Tier::device ? Tier::host : tier,
          .parameters = type,
          .persist = persist};
}

}  // namespace

TEST_CASE("OffloadedParameters: every use sees the values of all ranks, as they are after the last update")
{
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk})
    for (const Reshard reshard : {Reshard::after_forward, Reshard::after_backward, Reshard::never})
      for (const std::int64_t K : {0, 1, 5})
        for (const std::int64_t persist : {0, 64, 1'000'000}) {
          INFO(rankwise::name_of(tier) << ", K = " << K << ", persist = " << persist);
          Offloaded offloaded(parameters_in(tier, DType::f32, persist), K, reshard);
          bool same = offloaded.pass();
          offloaded.update();
          same = offloaded.pass() && same;
          same = offloaded.pass() && same;
          CHECK(same);  // of all ranks at the same time, or they would wait for each other
        }
}

TEST_CASE("OffloadedParameters: links that are slow change nothing, and neither does bf16")
{
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const std::int64_t K : {0, 1}) {
      Offloaded offloaded(parameters_in(tier, DType::bf16), K);
      offloaded.rank.make_slow();
      bool same = offloaded.pass();
      offloaded.update();
      same = offloaded.pass() && same;
      CHECK(same);
    }
}

TEST_CASE("OffloadedParameters: shards of several blocks")
{
  if (world().ranks() > 2) return;  // a third of the largest unit is one block
  PlanOptions options = parameters_in(Tier::disk);
  options.config = tiny_config(1, 8, 256, 6);
  Offloaded offloaded(options, 1);
  REQUIRE(offloaded.rank.plan.blocks.count() > offloaded.rank.plan.own.size());
  offloaded.parameters.begin({{0}, {1}, {2}, {3, 0}});
  bool same = true;
  for (const std::int64_t unit : {0, 1, 2, 3}) same = offloaded.now(offloaded.parameters.use(unit), unit) && same;
  offloaded.parameters.end();
  CHECK(same);
}

TEST_CASE("OffloadedParameters: the device holds only the units in use, each fetched as planned")
{
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk})
    for (const std::int64_t persist : {0, 64}) {
      INFO(rankwise::name_of(tier) << ", persist = " << persist);
      Offloaded offloaded(parameters_in(tier, DType::f32, persist), 0);
      const OffloadPlan& plan = offloaded.rank.plan;
      const auto bytes = [&](Tier in) { return offloaded.rank.ledger.current(in)[Category::parameters]; };
      const std::int64_t kept = bytes(Tier::device), replicated = 4 * offloaded.table.replicated().count;
      CHECK(kept == (tier == Tier::device ? kept_bytes(plan.step, plan.gathers, world()) : replicated));
      if (tier != Tier::device)
        CHECK(bytes(tier) == tier_bytes(plan)[static_cast<std::size_t>(tier)][Category::parameters]);
      const LinkBytes before = offloaded.rank.tiers.links().use().bytes;
      CHECK(offloaded.pass());
      CHECK(bytes(Tier::device) == kept);
      CHECK(offloaded.rank.ledger.peak(Tier::device)[Category::parameters] ==
            kept + gathered_bytes(plan.step, plan.gathers));
      LinkBytes expected{};
      for (const GatherStep& place : plan.gathers)
        for (const std::size_t unit : place.gathers) {
          if (tier != Tier::device) expected[0] += 4 * plan.own[unit].count;
          if (tier == Tier::disk) expected[2] += std::ssize(plan.blocks.of_shard(unit)) * plan.disk_block_bytes();
        }
      CHECK(moved(offloaded.rank, before) == expected);
    }
}
