// The exercises of lesson 06 that are functions: the plan of gathers, and one gather.

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/base/error.hpp"
#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/06_zero3/sharded_parameters.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/judge/ranges.hpp"

namespace rankwise::judge {

namespace {

/// How parameters are gathered, from the names of the options.
GatherOptions gathering_of(const Json& in)
{
  const std::string unit = in["unit"], reshard = in["reshard"];
  return {.unit = unit == "model"    ? UnitKind::model
                  : unit == "branch" ? UnitKind::branch
                                     : UnitKind::block,
          .prefetch = in["prefetch"],
          .reshard = reshard == "after-forward" ? Reshard::after_forward : Reshard::after_backward,
          .persist = in["persist"]};
}

/// The algorithm of collectives that has this name.
Algorithm algorithm_of(const std::string& name)
{
  for (const auto& [text, algorithm] : algorithms())
    if (text == name) return algorithm;
  throw Error("there is no algorithm " + name);
}

/// The uses of a micro-batch of L layers.
std::vector<Use> uses_of(const Json& in)
{
  TrainingOptions options;
  options.layers = in["layers"];
  options.recompute_blocks = in["recompute"];
  return rankwise::uses_of(options, in["training"]);
}

/// 06.1: the units that each place frees and gathers. The order in which a place frees units is free.
const Exercise plan("06.1", [](const Json& in) -> Json {
  const GatherOptions options = gathering_of(in);
  const ParameterTable table(testing::tiny_config(in["layers"], 2, in["channels"], 6), {}, {0, -1},
                             options.persist);
  Json frees = Json::array(), gathers = Json::array();
  for (GatherStep& step : plan_gathers(make_fsdp_units(table, options.unit), uses_of(in), options)) {
    std::sort(step.frees.begin(), step.frees.end());
    frees.push_back(step.frees);
    gathers.push_back(step.gathers);
  }
  return {{"frees", frees}, {"gathers", gathers}};
});

/// Parameters whose gathers can be started one by one.
class Parameters : public ShardedParameters {
 public:
  using ShardedParameters::gather;
  using ShardedParameters::ShardedParameters;
  /// Waits for a gather, and gives the whole unit.
  const Tensor& wait(std::size_t unit)
  {
    on_its_way_[unit].wait();
    return gathered_[unit].tensor();
  }
};

/// A model of which each rank has its shards.
struct Model {
  explicit Model(const Json& in)
      : options(gathering_of(in)),
        type(type_of(in["type"])),
        test(algorithm_of(in["collectives"])),
        table(testing::tiny_config(in["layers"], 2, in["channels"], 6), {}, {0, -1}, options.persist),
        parameters(lab.memory(), *test.stream, queue, table, units, own, type, options)
  {
  }

  /// Gives all parameters new values, whole numbers that depend on their place: each rank those that it owns.
  void update(std::int64_t seed)
  {
    for (std::size_t unit = 0; unit < own.size(); ++unit) {
      std::vector<double> values;
      for (std::int64_t i = own[unit].first; i < own[unit].end(); ++i)
        values.push_back(static_cast<double>((7 * i + seed) % 251 + 1));
      testing::assign(parameters.own()[unit], values);
    }
    for (const Tensor& whole : parameters.whole()) all_gather(whole, test.group);
  }

  /// A micro-batch: the values that each use finds, and the bytes that are allocated then.
  Json pass(const std::vector<Use>& uses)
  {
    Json values = Json::array(), memory = Json::array();
    parameters.begin(uses);
    for (const Use& use : uses) {
      // Something else is sent first, so that a use which does not wait for its parameters comes too early.
      Pending before = queue.start("another message", [](Group&) { std::this_thread::sleep_for(pause); });
      const std::vector<Tensor> of_use = parameters.use(use.front());
      before.wait();
      for (const Tensor& tensor : of_use) values.push_back(numbers(tensor));
      memory.push_back(bytes_of(lab.ledger()));
    }
    parameters.end();
    return {{"values", values}, {"memory", memory}, {"memory after it", bytes_of(lab.ledger())}};
  }

  static constexpr std::chrono::milliseconds pause{3};

  GatherOptions options;
  DType type;
  testing::Laboratory lab;
  TimeLedger time;
  GroupForTest test;
  CommunicationQueue queue{test.group, time};
  ParameterTable table;
  std::vector<FsdpUnit> units = make_fsdp_units(table, options.unit);
  std::vector<Range> own = shards_of(world().rank(), make_bucket_shards(units, world().ranks()));
  Parameters parameters;
};

/// Starts the gather of one unit on one rank after the other: a rank starts only when the rank before it has gone on.
Json one_by_one(Model& model, std::size_t unit)
{
  GroupForTest tokens(Algorithm::ring);
  const MPI_Comm ranks = tokens.group.communicator().handle();
  const int r = world().rank(), N = world().ranks();
  int token = 0;
  if (r > 0) MPI_Recv(&token, 1, MPI_INT, r - 1, 0, ranks, MPI_STATUS_IGNORE);
  model.parameters.gather(unit);
  if (r + 1 < N) MPI_Send(&token, 1, MPI_INT, r + 1, 0, ranks);
  const Json memory = bytes_of(model.lab.ledger());
  return {{"values", numbers(model.parameters.wait(unit))}, {"memory", memory}};
}

/// 06.2: gathers. The answers are what each use finds, before and after an update; or a whole unit whose gather no
/// rank waits for at once.
const Exercise gathers("06.2", [](const Json& in) -> Json {
  Model model(in);
  model.update(in["seed"]);
  if (in.contains("alone")) return one_by_one(model, in["alone"]);
  const Json first = model.pass(uses_of(in));
  model.update(in["seed"].get<std::int64_t>() + 100);
  return {{"first pass", first}, {"second pass", model.pass(uses_of(in))}};
});

}  // namespace

}  // namespace rankwise::judge
