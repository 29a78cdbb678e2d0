// AdamW of lesson 07: in every tier it has the bits of lesson 04 on the device.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lessons/parallel/offload/tiered_adamw.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/07/tiered_rank.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// An AdamW with its tiers, beside that of lesson 04.
struct Updated {
  explicit Updated(const PlanOptions& o) : options(o), rank(o)
  {
    parameters = std::make_shared<BlockStore>(rank.tiers, rank.plan.tier_of(Category::parameters),
                                              Category::parameters, o.parameters, "parameters");
    if (!rank.plan.updates_early())
      gradients = std::make_shared<BlockStore>(rank.tiers, rank.plan.tier_of(Category::gradients),
                                               Category::gradients, o.gradients, "gradients");
    adamw.emplace(rank.plan, rank.tiers, rank.plan.step.table, parameters, AdamWOptions{});
    start();
  }

  /// Gives both the same weights and moments, which are not zero.
  void start()
  {
    Laboratory& lab = rank.lab;
    const Tensor weights = lab.filled(DType::f32, {elements}, 1), m = lab.filled(DType::f32, {elements}, 2, 0.1),
                 v = lab.filled(DType::f32, {elements}, 3, 0.01, 0.02);
    adamw->for_each(Access::write, [&](const Shard& mine, Stream&) {
      rank.stream->copy(mine.parameters, weights.slice(mine.owned));
      rank.stream->copy(mine.first_moments, m.slice(mine.owned));
      rank.stream->copy(mine.second_moments, v.slice(mine.owned));
    });
    for (const Shard& mine : expected->shards()) {
      rank.stream->copy(mine.parameters, weights.slice(mine.owned));
      rank.stream->copy(mine.first_moments, m.slice(mine.owned));
      rank.stream->copy(mine.second_moments, v.slice(mine.owned));
    }
    adamw->round();
    expected->round(lab.kernels());
  }

  /// An update of both by the same gradients.
  void step(std::uint32_t number)
  {
    const Tensor gradient = rank.lab.filled(options.gradients, {elements}, 10 + number);
    const TieredStep numbers{.learning_rate = 0.1 / (1 + number), .gradient_scale = 0.5};
    if (rank.plan.updates_early()) {
      adamw->begin(numbers);
      for (std::size_t b = 0; b < rank.plan.blocks.count(); ++b)
        adamw->update(b, gradient.slice(rank.plan.blocks[b]));
      adamw->end();
    } else {
      rank.put_all(*gradients, gradient);
      adamw->step(gradients, numbers);
    }
    expected->step(rank.lab.kernels(), slices(gradient, rank.plan.own), 0.1 / (1 + number), 0.5);
  }

  /// The number of elements that are not the same, to the bit: of parameters, weights and moments.
  std::int64_t different()
  {
    std::int64_t count = rank.different(*parameters, flat);
    std::size_t s = 0;
    const auto same_part = [&](const Tensor& of_shard, Range block) {
      return of_shard.slice({block.first - rank.plan.own[s].first, block.count});
    };
    std::int64_t elements_seen = 0;
    adamw->for_each(Access::read, [&](const Shard& mine, Stream&) {
      while (intersect(rank.plan.own[s], mine.owned) != mine.owned) ++s;
      const Shard& other = expected->shards()[s];
      count += different_bits(mine.parameters, same_part(other.parameters, mine.owned)) +
               different_bits(mine.first_moments, same_part(other.first_moments, mine.owned)) +
               different_bits(mine.second_moments, same_part(other.second_moments, mine.owned));
      elements_seen += mine.owned.count;
    });
    return count + (elements_seen == elements_of(rank.plan.own) ? 0 : 1);
  }

  PlanOptions options;
  TieredRank rank;
  std::int64_t elements = rank.plan.step.table.elements();
  Tensor flat = rank.lab.zeros(options.parameters, {elements});  // lesson 04's parameters
  std::optional<ShardedAdamW> expected{std::in_place,        rank.lab.memory(), *rank.stream,
                                       rank.plan.step.table, rank.plan.own,     slices(flat, rank.plan.own),
                                       AdamWOptions{}};
  std::shared_ptr<BlockStore> parameters, gradients;
  std::optional<TieredAdamW> adamw;
};

/// Every offload to every tier, in f32, bf16, and bf16 with gradients of that type.
template <class Work>
void for_all(const Work& work)
{
  for (const Offload what : all_offloads)
    for (const Tier tier : {Tier::host, Tier::disk})
      for (const auto& [parameters, gradients] :
           {std::pair(DType::f32, DType::f32), {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}}) {
        const PlanOptions options{.what = what, .tier = tier, .parameters = parameters, .gradients = gradients};
        INFO(text_of(options));
        work(options);
      }
}

}  // namespace

TEST_CASE("TieredAdamW: the bits of lesson 04, step by step, in every tier")
{
  for_all([](const PlanOptions& options) {
    Updated updated(options);
    CHECK(updated.different() == 0);
    for (std::uint32_t step = 0; step < 3; ++step) {
      updated.step(step);
      CHECK(updated.different() == 0);
    }
    CHECK(updated.adamw->updates() == 3);
  });
}

TEST_CASE("TieredAdamW: links that are slow change nothing")
{
  for (const Offload what : all_offloads)
    for (const Tier tier : {Tier::host, Tier::disk}) {
      const PlanOptions options{.what = what, .tier = tier, .parameters = DType::bf16};
      INFO(text_of(options));
      Updated updated(options);
      updated.rank.make_slow();
      for (std::uint32_t step = 0; step < 2; ++step) updated.step(step);
      CHECK(updated.different() == 0);
    }
}

TEST_CASE("TieredAdamW: shards of several blocks, and tensors that are replicated")
{
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const bool large : {false, true}) {
      PlanOptions options{.tier = tier, .exact = true, .persist = 64};
      if (large) options.config = tiny_config(1, 8, 256, 6);
      INFO(text_of(options));
      Updated updated(options);
      for (std::uint32_t step = 0; step < 2; ++step) updated.step(step);
      CHECK(updated.different() == 0);
    }
}

TEST_CASE("TieredAdamW: resumes after updates of another optimizer")
{
  for (const Offload what : {Offload::optimizer, Offload::parameters}) {
    Updated updated({.what = what});
    updated.adamw->resume(7);
    updated.expected->resume(7);
    CHECK(updated.adamw->updates() == 7);
    updated.step(0);
    CHECK(updated.different() == 0);
    CHECK(updated.adamw->updates() == 8);
  }
}

TEST_CASE("TieredAdamW: the parameters are the rounded weights when they were rounded, and not before")
{
  for (const Offload what : all_offloads) {
    Updated updated({.what = what, .parameters = DType::bf16});
    TieredRank& rank = updated.rank;
    const Tensor weights = rank.lab.filled(DType::f32, {updated.elements}, 30),
                 rounded = rank.lab.converted(weights, DType::bf16);
    updated.adamw->for_each(Access::update, [&](const Shard& mine, Stream& stream) {
      stream.copy(mine.parameters, weights.slice(mine.owned));
    });
    CHECK(rank.different(*updated.parameters, updated.flat) == 0);
    updated.adamw->round();
    CHECK(rank.different(*updated.parameters, rounded) == 0);
  }
}

TEST_CASE(
    "TieredAdamW: its shards are the pieces that blocks have in common with ranges, and are stored if written")
{
  for (const auto& [what, tier] :
       {std::pair(Offload::optimizer, Tier::host), {Offload::parameters, Tier::host}, {Offload::all, Tier::disk}}) {
    const PlanOptions options{.what = what, .tier = tier};
    INFO(text_of(options));
    Updated updated(options);
    TieredRank& rank = updated.rank;
    const Range large = rank.plan.own[0], small = rank.plan.own[1];
    const std::vector<Range> ranges{
        {large.first + 1, large.count / 2}, {large.end() - 2, 2}, {small.first, small.count / 3}};
    const HeldShards held = updated.adamw->shards(ranges);
    CHECK(held.ranges == ranges);
    const auto value = [](std::int64_t element, int vector) { return static_cast<float>(10 * element + vector); };
    std::int64_t written = 0;
    held.for_each(Access::update, [&](const Shard& some, Stream&) {
      const std::array<Tensor, 3> of{some.parameters, some.first_moments, some.second_moments};
      for (int v = 0; v < 3; ++v)
        for (std::int64_t i = 0; i < some.owned.count; ++i)
          of[static_cast<std::size_t>(v)].span<float>()[static_cast<std::size_t>(i)] =
              value(some.owned.first + i, v);
      CHECK_FALSE(some.owned.empty());
      written += some.owned.count;
    });
    CHECK(written == elements_of(ranges));
    // These elements of the blocks have the new values, all three of each; and no others have them.
    std::int64_t same = 0;
    const LinkBytes before = rank.tiers.links().use().bytes;
    updated.adamw->for_each(Access::read, [&](const Shard& block, Stream&) {
      for (std::int64_t i = 0; i < block.owned.count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::int64_t element = block.owned.first + i;
        if (block.parameters.span<float>()[at] == value(element, 0) &&
            block.first_moments.span<float>()[at] == value(element, 1) &&
            block.second_moments.span<float>()[at] == value(element, 2)) {
          ++same;
          CHECK(std::ranges::any_of(ranges, [&](const Range& range) { return range.contains(element); }));
        }
      }
    });
    CHECK(same == elements_of(ranges));
    const LinkBytes of_walk = moved(rank, before);
    // A walk that reads some of the elements moves as much as one that reads all.
    const LinkBytes then = rank.tiers.links().use().bytes;
    held.for_each(Access::read, [](const Shard&, Stream&) {});
    CHECK(moved(rank, then) == of_walk);
  }
}

TEST_CASE("TieredAdamW: copies any contiguous elements that this rank owns")
{
  for (const auto& [what, tier] :
       {std::pair(Offload::optimizer, Tier::host), {Offload::parameters, Tier::disk}, {Offload::all, Tier::disk}}) {
    const PlanOptions options{.what = what, .tier = tier, .exact = true, .config = tiny_config(1, 8, 256, 6)};
    INFO(text_of(options));
    Updated updated(options);
    Laboratory& lab = updated.rank.lab;
    const HeldShards held = updated.adamw->shards(updated.rank.plan.own);
    for (std::uint32_t step = 0; step < 2; ++step) {
      bool same = true;
      for (const Range& own : updated.rank.plan.own)
        for (const Range part :
             {own, Range{own.first, 1}, {own.end() - 1, 1}, {own.first + own.count / 3, own.count / 2}}) {
          const Tensor to = lab.zeros(DType::f32, {part.count});
          held.copy_parameters(part, to);
          same = different_bits(to, updated.flat.slice(part)) == 0 && same;
        }
      CHECK(same);
      if (step == 0) updated.step(step);  // what was copied before is not what is there now
    }
  }
}

TEST_CASE("TieredAdamW: the first element that is not finite, of the parameters and then of the gradients")
{
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const Offload what : all_offloads) {
      INFO(testing::name_of(what) << " on " << rankwise::name_of(tier));
      Updated updated({.what = what, .tier = tier});
      TieredRank& rank = updated.rank;
      const Tensor gradient = rank.lab.filled(DType::f32, {updated.elements}, 8);
      const auto look = [&] {
        rank.put_all(*updated.gradients, gradient);
        return updated.adamw->first_not_finite(updated.gradients);
      };
      const auto spoil_weight = [&](std::int64_t at, float value) {
        updated.adamw->for_each(Access::update, [&](const Shard& mine, Stream&) {
          if (mine.owned.contains(at))
            mine.parameters.span<float>()[static_cast<std::size_t>(at - mine.owned.first)] = value;
        });
      };
      // The first shard is the last in the table, and so on: the order is that of the table.
      const std::int64_t late = rank.plan.own[0].first + 1, early = rank.plan.own[3].first + 2;
      CHECK_FALSE(look());
      gradient.span<float>()[static_cast<std::size_t>(late)] = infinity;
      CHECK(look() == updated.elements + late);
      gradient.span<float>()[static_cast<std::size_t>(early)] = std::nanf("");
      CHECK(look() == updated.elements + early);
      CHECK(updated.adamw->first_not_finite(nullptr, updated.elements + late) == updated.elements + late);
      spoil_weight(late, infinity);
      CHECK(look() == late);
      CHECK(updated.adamw->first_not_finite(nullptr, updated.elements + late) == late);
      spoil_weight(early, -infinity);
      CHECK(look() == early);
      spoil_weight(early, 0);
      CHECK(look() == late);
      spoil_weight(late, 0);
      CHECK(look() == updated.elements + early);
      CHECK_FALSE(updated.adamw->first_not_finite(nullptr));
    }
}

TEST_CASE("TieredAdamW: blocks that are updated as their gradients come have the bits of lesson 04")
{
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const auto& [parameters, gradients] :
         {std::pair(DType::f32, DType::f32), {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}})
      for (const bool large : {false, true}) {
        PlanOptions options{.tier = tier,
                            .exact = large,
                            .parameters = parameters,
                            .gradients = gradients,
                            .persist = large ? 64 : 0,
                            .clips = false};
        if (large) options.config = tiny_config(1, 8, 256, 6);
        INFO(text_of(options));
        Updated updated(options);
        updated.rank.make_slow();
        for (std::uint32_t step = 0; step < 3; ++step) {
          updated.step(step);
          CHECK(updated.different() == 0);
        }
        CHECK(updated.adamw->updates() == 3);
      }
}

TEST_CASE("TieredAdamW: an update that is under way goes from block to block, and ends with the last")
{
  Updated updated({.tier = Tier::disk, .clips = false});
  const Tensor gradient = updated.rank.lab.filled(DType::f32, {updated.elements}, 5);
  const auto update = [&](std::size_t b) { updated.adamw->update(b, gradient.slice(updated.rank.plan.blocks[b])); };
  CHECK_FALSE(updated.adamw->is_under_way());
  updated.adamw->begin({.learning_rate = 0.1});
  CHECK(updated.adamw->is_under_way());
  CHECK(updated.adamw->updates() == 1);
  for (std::size_t b = 0; b < updated.rank.plan.blocks.count(); ++b) update(b);
  CHECK(updated.adamw->is_under_way());
  updated.adamw->end();
  CHECK_FALSE(updated.adamw->is_under_way());
  const auto out_of_turn = [] {
    Updated other({.tier = Tier::disk, .clips = false});
    other.adamw->begin({});
    other.adamw->update(1, other.rank.lab.zeros(DType::f32, {other.rank.plan.blocks[1].count}));
  };
  CHECK_THROWS_WITH(out_of_turn(), Contains("out of order"));
}

TEST_CASE("TieredAdamW: an update names the first gradient that is not finite")
{
  Updated updated({.clips = false});
  updated.adamw->begin({.step = 7, .loss = 2.5});
  CHECK_NOTHROW(updated.adamw->expect_finite({}));
  CHECK_THROWS_WITH(
      updated.adamw->expect_finite(updated.elements + 3),
      Contains("step 7: the gradient of wte.weight is not finite, first at element 3 of") && Contains("loss 2.5"));
}

TEST_CASE("TieredAdamW: memory and links as planned")
{
  for_all([](const PlanOptions& options) {
    Updated updated(options);
    const OffloadPlan& plan = updated.rank.plan;
    const TierBytes planned = tier_bytes(plan);
    for (const Tier tier : {Tier::host, Tier::disk})
      for (const Category c : {Category::optimizer, Category::parameters, Category::gradients})
        CHECK(updated.rank.ledger.current(tier)[c] == planned[static_cast<std::size_t>(tier)][c]);
    // Sums of gradients, and parameters of units that are gathered, are no part of this.
    LinkBytes expected{};
    const auto move = [&](Tier from, Tier to, DType type) {
      const std::int64_t bytes = bytes_of(type) * plan.blocks.elements();
      const std::int64_t on_disk = static_cast<std::int64_t>(plan.blocks.count()) * plan.disk_block_bytes();
      if (from == to) return;
      if (from == Tier::disk) expected[2] += on_disk;
      if (to == Tier::disk) expected[3] += on_disk;
      if (to == Tier::device) expected[0] += bytes;
      if (from == Tier::device) expected[1] += bytes;
    };
    const Tier states = plan.tier_of(Category::optimizer), parameters = plan.tier_of(Category::parameters),
               used = plan.updated_in();
    for (int vector = 0; vector < (plan.has_master() ? 3 : 2); ++vector) {
      move(states, used, DType::f32);
      move(used, states, DType::f32);
    }
    if (!plan.has_master()) move(parameters, used, options.parameters);
    move(used, parameters, options.parameters);
    move(plan.tier_of(Category::gradients), used, options.gradients);
    updated.step(0);  // so that there are gradients
    const LinkBytes before = updated.rank.tiers.links().use().bytes;
    updated.adamw->step(updated.gradients, {});
    CHECK(moved(updated.rank, before) == expected);
  });
}
