// The parameters of lesson 06: each use sees the current values of all ranks, gathered only while they are needed.

#include <chrono>
#include <future>
#include <thread>

#include "common/base/error.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/sharded_parameters.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Units: embedding 704 elements, then (4,288 of attention, 8,416 of an MLP) twice, head 64.
const ModelConfig config = tiny_config(2, 4, 32, 6);
const std::vector<Use> training{{0}, {1}, {2}, {3}, {4}, {5, 0}, {4}, {3}, {2}, {1}};
const std::vector<Use> evaluation{{0}, {1}, {2}, {3}, {4}, {5, 0}};

/// Shows what a class that is derived from it sees.
struct Derived : ShardedParameters {
  using ShardedParameters::gather, ShardedParameters::on_its_way_, ShardedParameters::ShardedParameters;
};

/// Parameters of which each rank has some, and what all of them together are.
struct Sharded {
  explicit Sharded(const GatherOptions& gather_options, DType parameter_type = DType::f32)
      : options(gather_options), type(parameter_type)
  {
    update();
  }

  /// Gives every parameter another value: each rank those that it owns.
  void update()
  {
    ++updates;
    all = lab.filled(type, {table.elements()}, updates);
    for (std::size_t unit = 0; unit < own.size(); ++unit)
      lab.stream().copy(parameters.own()[unit], all.slice(own[unit]));
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
  bool pass(const std::vector<Use>& uses)
  {
    bool same = true;
    parameters.begin(uses);
    for (const Use& use : uses) {
      same = now(parameters.use(use.front()), use.front()) && same;
      for (const std::int64_t unit : use) same = now(parameters.of(unit), unit) && same;
    }
    parameters.end();
    return same;
  }

  std::int64_t bytes() { return lab.ledger().current(Tier::device)[Category::parameters]; }
  std::int64_t most() { return lab.ledger().peak(Tier::device)[Category::parameters]; }
  /// Bytes that are there between passes.
  std::int64_t kept() const
  {
    std::int64_t elements = table.replicated().count;
    for (std::size_t unit = 0; unit < own.size(); ++unit)
      if (!units[unit].units.empty()) elements += own[unit].count;
    return bytes_of(type) * elements;
  }
  /// The most bytes that a pass gathers.
  std::int64_t gathered(const std::vector<Use>& uses) const
  {
    const StepPlan plan{table, units, DType::f32, type, Arithmetic(Sums::fast), Algorithm::ring};
    return gathered_bytes(plan, plan_gathers(units, uses, options));
  }

  GatherOptions options;
  DType type;
  Laboratory lab;
  TimeLedger time;
  GroupForTest test{Algorithm::ring};
  CommunicationQueue queue{test.group, time};
  ParameterTable table{config, {}, {0, -1}, options.persist};
  std::vector<FsdpUnit> units = make_fsdp_units(table, options.unit);
  std::vector<Range> own = shards_of(world().rank(), make_bucket_shards(units, world().ranks()));
  Derived parameters{lab.memory(), *test.stream, queue, table, units, own, type, options};
  std::uint32_t updates = 0;
  Tensor all;  // the same on all ranks
};

}  // namespace

TEST_CASE("ShardedParameters: every use sees the values of all ranks, as they are after the last update")
{
  for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
    for (const Reshard reshard : {Reshard::after_forward, Reshard::after_backward, Reshard::never})
      for (const std::int64_t K : {0, 1, 5})
        for (const std::int64_t persist : {0, 128, 512, 1'000'000}) {
          INFO("unit = " << static_cast<int>(unit) << ", reshard = " << static_cast<int>(reshard) << ", K = " << K
                         << ", persist = " << persist);
          Sharded sharded({unit, K, reshard, persist});
          bool same = sharded.pass(training);
          sharded.update();
          for (const auto& uses : {evaluation, training}) same = sharded.pass(uses) && same;
          sharded.update();
          same = sharded.pass(training) && same;
          CHECK(same);  // of all ranks at the same time, or they would wait for each other
        }
}

TEST_CASE("ShardedParameters: units that are never freed stay whole, and this rank's shards are parts of them")
{
  for (const std::int64_t persist : {0, 128}) {
    Sharded sharded({.reshard = Reshard::never, .persist = persist});
    CHECK(sharded.pass(training));
    CHECK(sharded.bytes() == 4 * sharded.table.elements());
    CHECK(sharded.most() == sharded.bytes());
    CHECK(sharded.gathered(training) == 0);
    const StepPlan plan{sharded.table, sharded.units,          DType::f32,
                        DType::f32,    Arithmetic(Sums::fast), Algorithm::ring};
    const std::vector<GatherStep> gathers = plan_gathers(sharded.units, training, sharded.options);
    CHECK(whole_elements(plan, gathers) == sharded.table.elements());
    CHECK(kept_bytes(plan, gathers, world()) == sharded.bytes());
    // Each is gathered once a step, after the update.
    std::vector<std::int64_t> gathered;
    for (const CollectiveShape& call : collectives_of(plan, gathers, world().ranks()))
      if (call.collective == "all-gather")
        gathered.insert(gathered.end(), static_cast<std::size_t>(call.times), call.count);
    std::vector<std::int64_t> units;
    for (const Bucket& unit : sharded.units) units.push_back(unit.elements.count);
    CHECK(gathered == units);
  }
}

TEST_CASE("ShardedParameters: in bf16 too")
{
  Sharded sharded({.unit = UnitKind::branch, .persist = 64}, DType::bf16);
  CHECK(sharded.pass(training));
  sharded.update();
  CHECK(sharded.pass(training));
  CHECK(sharded.bytes() == sharded.kept());
}

TEST_CASE("ShardedParameters: a use waits for its pending gather")
{
  using namespace std::chrono_literals;
  for (const std::int64_t K : {0, 1}) {
    Sharded sharded({.unit = UnitKind::branch, .prefetch = K});
    sharded.parameters.begin(evaluation);
    for (const Use& use : evaluation) {  // the queue is busy with something else first
      Pending before = sharded.queue.start("another message", [](Group&) { std::this_thread::sleep_for(5ms); });
      CHECK(sharded.now(sharded.parameters.use(use.front()), use.front()));
      before.wait();
    }
    sharded.parameters.end();
  }
}

TEST_CASE("ShardedParameters: memory is freed, and never exceeds the plan")
{
  for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
    for (const Reshard reshard : {Reshard::after_forward, Reshard::after_backward})
      for (const std::int64_t K : {0, 1, 2})
        for (const std::int64_t persist : {0, 128, 1'000'000}) {
          INFO("unit = " << static_cast<int>(unit) << ", reshard = " << static_cast<int>(reshard) << ", K = " << K
                         << ", persist = " << persist);
          Sharded sharded({unit, K, reshard, persist});
          CHECK(sharded.bytes() == sharded.kept());
          CHECK(sharded.pass(evaluation));
          CHECK(sharded.bytes() == sharded.kept());
          CHECK(sharded.most() == sharded.kept() + sharded.gathered(evaluation));
          CHECK(sharded.pass(training));
          CHECK(sharded.bytes() == sharded.kept());
          CHECK(sharded.most() == sharded.kept() + sharded.gathered(training));
        }
}

// What has the tag [06.2] needs 06.3 and none of the exercises after it; what has the tag [06.3] needs none.
TEST_CASE("ShardedParameters: a gather is started, and brings the shards of all ranks", "[06.2]")
{
  using namespace std::chrono_literals;
  for (const DType type : {DType::f32, DType::bf16})
    for (const UnitKind kind : {UnitKind::block, UnitKind::branch, UnitKind::model}) {
      Sharded sharded({.unit = kind, .persist = 128}, type);
      std::int64_t elements = 0;
      for (std::size_t u = 0; u < sharded.units.size(); ++u) {
        const FsdpUnit& unit = sharded.units[u];
        if (unit.units.empty()) continue;
        std::promise<void> started;
        bool waited = true;
        Pending before = sharded.queue.start("another message", [&](Group&) {
          waited = started.get_future().wait_for(5s) != std::future_status::ready;
        });
        sharded.parameters.gather(u);
        started.set_value();
        before.wait();
        sharded.parameters.on_its_way_[u].wait();
        CHECK_FALSE(waited);
        for (std::int64_t i = unit.units.first; i < unit.units.end(); ++i)
          CHECK(sharded.now(sharded.parameters.of(i), i));
        elements += unit.elements.count;
        CHECK(sharded.bytes() == sharded.kept() + bytes_of(type) * elements);
      }
    }
}

TEST_CASE(
    "ShardedParameters: shards are parts of the units that are kept whole, all others stand one after the other",
    "[06.3]")
{
  for (const DType type : {DType::f32, DType::bf16})
    for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
      for (const Reshard reshard : {Reshard::after_forward, Reshard::never})
        for (const std::int64_t persist : {0, 128, 1'000'000}) {
          INFO("unit = " << static_cast<int>(unit) << ", reshard = " << static_cast<int>(reshard)
                         << ", persist = " << persist);
          Sharded sharded({.unit = unit, .reshard = reshard, .persist = persist}, type);
          const std::vector<Tensor>& own = sharded.parameters.own();
          const std::vector<Tensor> whole = sharded.parameters.whole();
          REQUIRE(own.size() == sharded.units.size());
          std::size_t wholes = 0;
          const std::byte* next = nullptr;  // where the next shard stands that is part of no whole unit
          for (std::size_t u = 0; u < own.size(); ++u) {
            const Range all = sharded.units[u].elements;
            REQUIRE(own[u].elements() == sharded.own[u].count);
            if (reshard == Reshard::never || sharded.units[u].units.empty()) {
              CHECK(own[u].raw() == whole[wholes].raw() + bytes_of(type) * (sharded.own[u].first - all.first));
              CHECK(different_bits(whole[wholes++], sharded.all.slice(all)) ==
                    0);  // all ranks wrote to their places
            } else {
              CHECK((next == nullptr || own[u].raw() == next));
              CHECK(different_bits(own[u], sharded.all.slice(sharded.own[u])) == 0);
              next = own[u].raw() + own[u].bytes();
            }
          }
          CHECK(wholes == whole.size());
        }
  CHECK(Sharded({}).parameters.replicated().empty());
}

TEST_CASE("ShardedParameters: shards that are stored elsewhere have empty views", "[06.3]")
{
  Sharded sharded({.persist = 128});
  const ShardedParameters elsewhere{sharded.lab.memory(), *sharded.test.stream, sharded.queue,
                                    sharded.table,        sharded.units,        sharded.own,
                                    DType::f32,           sharded.options,      false};
  REQUIRE(elsewhere.own().size() == sharded.units.size());
  for (std::size_t u = 0; u < sharded.units.size(); ++u)
    CHECK(elsewhere.own()[u].elements() == (sharded.units[u].units.empty() ? sharded.own[u].count : 0));
}

TEST_CASE("ShardedParameters: a use out of order is an error, on every rank")
{
  Sharded sharded({.unit = UnitKind::branch, .prefetch = 0});
  ShardedParameters& parameters = sharded.parameters;
  CHECK_THROWS_AS(parameters.use(0), Error);  // no pass has begun
  parameters.begin(evaluation);
  CHECK_THROWS_AS(parameters.begin(evaluation), Error);
  CHECK_THROWS_WITH(parameters.use(1), Contains("unit 1 is used out of order"));
  CHECK_THROWS_AS(parameters.end(), Error);
  parameters.use(0);
  CHECK_THROWS_WITH(parameters.of(3), Contains("unit 3 is not gathered"));
  for (const std::int64_t unit : {1, 2, 3, 4}) parameters.use(unit);
  CHECK_THROWS_WITH(parameters.of(3), Contains("unit 3 is not gathered"));
  CHECK_THROWS_AS(parameters.end(), Error);
  parameters.use(5);
  CHECK(sharded.now(parameters.of(0), 0));
  CHECK_THROWS_AS(parameters.use(0), Error);
  parameters.end();
  CHECK(sharded.pass(training));
}
