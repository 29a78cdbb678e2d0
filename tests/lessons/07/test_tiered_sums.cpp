// The sums of lesson 07: in every tier they have the bits of lesson 05 on the device.

#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "lessons/parallel/offload/tiered_sums.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/lessons/07/slow_kernels.hpp"
#include "tests/lessons/07/tiered_rank.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Tier of the sums: the device where only the optimizer leaves it.
PlanOptions sums_in(Tier tier, std::int64_t M, bool exact, DType type = DType::f32)
{
  return {.what = tier == Tier::device ? Offload::optimizer : Offload::gradients,
          .tier = tier == Tier::device ? Tier::host : tier,
          .micro_batches = M,
          .exact = exact,
          .parameters = type,
          .gradients = type};
}

/// Sums of a rank beside those of lesson 05.
struct Summed {
  explicit Summed(const PlanOptions& o) : options(o), rank(o) {}
  /// @param adds  kernels of the host.
  Summed(const PlanOptions& o, const Kernels& adds) : options(o), rank(o, adds) {}

  /// Gradients of a shard from one micro-batch of all ranks: one tensor or two.
  std::vector<Tensor> gradients(std::size_t shard, std::uint32_t series)
  {
    Laboratory& lab = rank.lab;
    const Range own = rank.plan.own[shard], tied = intersect(own, sums_of(rank.plan.step).tied);
    std::vector<Tensor> both{
        lab.filled(options.gradients, {own.count}, 1000 * series + static_cast<std::uint32_t>(shard))};
    if (!tied.empty()) both.push_back(lab.filled(options.gradients, {tied.count}, 1000 * series + 500));
    return both;
  }

  /// Makes the sums of a step. @return the number of elements, and norms, that are not those of lesson 05.
  std::int64_t step(std::uint32_t number)
  {
    const std::int64_t ranks = world().ranks();
    for (std::int64_t m = 0; m < options.micro_batches; ++m)
      for (std::size_t s = 0; s < rank.plan.own.size(); ++s) {
        const Range sequences{m * ranks, ranks};
        const std::vector<Tensor> of_pass = gradients(s, 10 * number + static_cast<std::uint32_t>(m));
        expected.add(s, sequences, of_pass);
        const TieredSums::Arrival there = sums.expect(s, of_pass);
        std::thread([&] { sums.bring(there, *rank.stream); }).join();
        for (const Tensor& gradient : of_pass)
          if (rank.plan.tier_of(Category::gradients) != Tier::device)
            rank.stream->zero(gradient);  // its buffer is free
        sums.add(there, sequences);
        if (early() && m + 1 == options.micro_batches)
          for (const TieredSums::Gradients& g : there.to)
            rank.stream->copy(early_totals.slice(rank.plan.blocks[g.block]), g.sum);
      }
    const std::shared_ptr<BlockStore> totals = sums.totals();
    const std::vector<Tensor> of_lesson_5 = expected.totals();
    std::int64_t different = 0;
    for (std::size_t s = 0; s < rank.plan.own.size(); ++s) {
      for (const std::size_t b : rank.plan.blocks.of_shard(s)) {
        const Range elements = rank.plan.blocks[b];
        const Tensor there = rank.lab.zeros(options.gradients, {elements.count});
        if (early())
          rank.stream->copy(there, early_totals.slice(elements));
        else
          rank.get(*totals, b, there);
        different +=
            different_bits(there, of_lesson_5[s].slice({elements.first - rank.plan.own[s].first, elements.count}));
      }
    }
    const double norm = squared_norm(rank.lab.kernels(), of_lesson_5, group.group);
    different += (totals == nullptr) == early() ? 0 : 1;
    return different + (sums.squared_norm(group.group) == norm && norm > 0 ? 0 : 1);
  }

  bool early() const { return rank.plan.updates_early(); }

  PlanOptions options;
  TieredRank rank;
  Tensor early_totals = rank.lab.zeros(options.gradients, {rank.plan.step.table.elements()});
  GroupForTest group{Algorithm::ring};
  ShardSums expected{rank.lab.kernels(), *rank.stream,  rank.lab.memory(),
                     rank.plan.step,     rank.plan.own, rank.plan.ranks};
  TieredSums sums{rank.plan, rank.tiers};
};

}  // namespace

TEST_CASE("TieredSums: in each tier the bits of lesson 05, step by step")
{
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk})
    for (const bool exact : {false, true})
      for (const std::int64_t M : {1, 2, 3, 4, 5, 6, 7, 8}) {
        const PlanOptions options = sums_in(tier, M, exact);
        INFO(text_of(options));
        Summed summed(options);
        for (std::uint32_t step = 0; step < 3; ++step) CHECK(summed.step(step) == 0);
      }
}

TEST_CASE("TieredSums: for an early update the last arrival is the complete sum, which is not stored")
{
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const bool exact : {false, true})
      for (const std::int64_t M : {1, 2, 3, 4, 6, 8})
        for (const DType type : {DType::f32, DType::bf16}) {
          if (exact && type == DType::bf16) continue;
          PlanOptions options = sums_in(tier, M, exact, type);
          options.what = Offload::all;
          options.clips = false;
          INFO(text_of(options));
          Summed summed(options);
          summed.rank.make_slow();
          const TierBytes planned = tier_bytes(summed.rank.plan);
          for (const Category c : {Category::gradients, Category::exact_sums})
            CHECK(summed.rank.ledger.current(tier)[c] == planned[static_cast<std::size_t>(tier)][c]);
          for (std::uint32_t step = 0; step < 3; ++step) {
            const LinkBytes before = summed.rank.tiers.links().use().bytes;
            CHECK(summed.step(step) == 0);
            const std::int64_t written = moved(summed.rank, before)[3];
            CHECK((written == 0) == (tier == Tier::host || M == 1));
          }
          CHECK_FALSE(summed.sums.first_not_finite());
        }
}

TEST_CASE("TieredSums: the first of the whole sums' elements that is not finite")
{
  PlanOptions options = sums_in(Tier::host, 2, false);
  options.what = Offload::all;
  options.clips = false;
  Summed summed(options);
  const std::vector<Range>& own = summed.rank.plan.own;
  const auto add = [&](std::int64_t pass, std::size_t shard, bool spoilt) {
    const std::vector<Tensor> of_pass = summed.gradients(shard, 1);
    if (spoilt) of_pass[0].span<float>()[1] = std::numeric_limits<float>::infinity();
    const TieredSums::Arrival there = summed.sums.expect(shard, of_pass);
    summed.sums.bring(there, *summed.rank.stream);
    summed.sums.add(there, {pass * world().ranks(), world().ranks()});
  };
  const std::int64_t P = summed.rank.plan.step.table.elements();
  for (std::size_t s = 0; s < own.size(); ++s) add(0, s, s == 1);
  CHECK_FALSE(summed.sums.first_not_finite());  // it is not whole yet
  for (std::size_t s = 0; s < own.size(); ++s) {
    add(1, s, s == 2);
    if (s == 0) CHECK_FALSE(summed.sums.first_not_finite());
    if (s == 1) CHECK(summed.sums.first_not_finite() == P + own[1].first + 1);
  }
  CHECK(summed.sums.first_not_finite() == P + own[2].first + 1);
}

TEST_CASE("TieredSums: any number of micro-batches if sums are not a tree")
{
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const std::int64_t M : {3, 5}) {
      Summed summed(sums_in(tier, M, false));
      for (std::uint32_t step = 0; step < 2; ++step) CHECK(summed.step(step) == 0);
    }
}

TEST_CASE("TieredSums: gradients in bf16")
{
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk})
    for (const std::int64_t M : {1, 4}) {
      const PlanOptions options = sums_in(tier, M, false, DType::bf16);
      INFO(text_of(options));
      Summed summed(options);
      for (std::uint32_t step = 0; step < 2; ++step) CHECK(summed.step(step) == 0);
    }
}

TEST_CASE("TieredSums: links that are slow change nothing")
{
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const bool exact : {false, true}) {
      const PlanOptions options = sums_in(tier, 4, exact);
      INFO(text_of(options));
      Summed summed(options);
      summed.rank.make_slow();
      for (std::uint32_t step = 0; step < 2; ++step) CHECK(summed.step(step) == 0);
    }
}

TEST_CASE("TieredSums: prefetched sums do not overwrite those in use")
{
  for (const bool exact : {false, true}) {
    const Kernels kernels = make_slow_kernels();
    Summed summed(sums_in(Tier::disk, 2, exact), kernels);
    CHECK(summed.step(0) == 0);
  }
}

TEST_CASE("TieredSums: where tensors are replicated, and where a shard has several blocks")
{
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const bool exact : {false, true}) {
      PlanOptions options = sums_in(tier, 2, exact);
      options.persist = 64;
      {
        INFO(text_of(options));
        Summed summed(options);
        for (std::uint32_t step = 0; step < 2; ++step) CHECK(summed.step(step) == 0);
      }
      options = sums_in(tier, 2, exact);
      options.config = tiny_config(1, 8, 256, 6);
      INFO(text_of(options));
      Summed summed(options);
      CHECK(summed.rank.plan.blocks.count() > summed.rank.plan.own.size());
      for (std::uint32_t step = 0; step < 2; ++step) CHECK(summed.step(step) == 0);
    }
}

TEST_CASE("TieredSums: memory and links as planned")
{
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const bool exact : {false, true})
      for (const std::int64_t M : {1, 4}) {
        const PlanOptions options = sums_in(tier, M, exact);
        INFO(text_of(options));
        Summed summed(options);
        const TierBytes planned = tier_bytes(summed.rank.plan);
        const CategoryBytes there = summed.rank.ledger.current(tier);
        for (const Category c : {Category::gradients, Category::exact_sums})
          CHECK(there[c] == planned[static_cast<std::size_t>(tier)][c]);
        CHECK(summed.rank.ledger.current(Tier::host)[Category::staging] == planned[1][Category::staging]);
        LinkBytes expected = link_traffic(summed.rank.plan);
        // AdamW, which runs on the device, is no part of this: it brings every gradient there once.
        expected[0] = 0;
        if (tier == Tier::disk)
          expected[2] -=
              static_cast<std::int64_t>(summed.rank.plan.blocks.count()) * summed.rank.plan.disk_block_bytes();
        for (std::uint32_t step = 0; step < 2; ++step) {
          const LinkBytes before = summed.rank.tiers.links().use().bytes;
          const std::int64_t test_reads =
              tier == Tier::disk
                  ? static_cast<std::int64_t>(summed.rank.plan.blocks.count()) * summed.rank.plan.disk_block_bytes()
                  : 0;
          CHECK(summed.step(step) == 0);
          LinkBytes bytes = moved(summed.rank, before);
          bytes[2] -= test_reads;
          CHECK(bytes == expected);
        }
      }
}

TEST_CASE("TieredSums: two ranks' norm is that of all their elements")
{
  Summed summed(sums_in(Tier::host, 1, false));
  Laboratory lab;
  const Tensor all = lab.filled(DType::f32, {26'176}, 3);
  for (std::size_t s = 0; s < summed.rank.plan.own.size(); ++s) {
    const Tensor mine = lab.copied(all.slice(summed.rank.plan.own[s]));
    const TieredSums::Arrival there = summed.sums.expect(s, {mine});
    summed.sums.bring(there, *summed.rank.stream);
    summed.sums.add(there, {0, world().ranks()});
  }
  summed.sums.totals();
  CHECK(summed.sums.squared_norm(summed.group.group) == lab.kernels()->squared_norm(all).value());
}

TEST_CASE("TieredSums: elements that a rank does not count are left out of the squares")
{
  for (const Tier tier : {Tier::device, Tier::host}) {
    INFO(rankwise::name_of(tier));
    PlanOptions options = sums_in(Tier::host, 1, false);
    if (tier == Tier::device) options.what = Offload::optimizer;
    Summed summed(options);
    OffloadPlan plan = summed.rank.plan;
    plan.counted = {{plan.own[1].first + 3, plan.own[1].count - 5}, {plan.own[2].first, 2}};
    TieredSums sums(plan, summed.rank.tiers);
    Laboratory lab;
    const Tensor all = lab.filled(DType::f32, {26'176}, 3);
    for (std::size_t s = 0; s < plan.own.size(); ++s) {
      const Tensor mine = lab.copied(all.slice(plan.own[s]));
      const TieredSums::Arrival there = sums.expect(s, {mine});
      sums.bring(there, *summed.rank.stream);
      sums.add(there, {0, world().ranks()});
    }
    sums.totals();
    auto expected = lab.kernels()->squared_norm(all.slice(plan.counted[0]));
    expected += lab.kernels()->squared_norm(all.slice(plan.counted[1]));
    CHECK(sums.squares().value() == expected.value());
  }
}
