// The exercises of lesson 06: the plan of gathers, one gather, where shards are stored, and the uses of a micro-batch.

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "common/base/error.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/sharded_parameters.hpp"
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
          .reshard = reshard == "after-forward"    ? Reshard::after_forward
                     : reshard == "after-backward" ? Reshard::after_backward
                                                   : Reshard::never,
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

/// Turns of the ranks: each goes on when the rank before it has.
class Turns {
 public:
  /// Returns when it is this rank's turn.
  void wait()
  {
    int token = 0;
    if (world().rank() > 0) MPI_Recv(&token, 1, MPI_INT, world().rank() - 1, 0, ranks_, MPI_STATUS_IGNORE);
  }
  /// It is the next rank's turn.
  void pass_on()
  {
    const int token = 0;
    if (world().rank() + 1 < world().ranks()) MPI_Send(&token, 1, MPI_INT, world().rank() + 1, 0, ranks_);
  }

 private:
  GroupForTest test_{Algorithm::ring};
  MPI_Comm ranks_ = test_.group.communicator().handle();
};

/// A model of which each rank has its shards.
struct Model {
  explicit Model(const Json& in)
      : options(gathering_of(in)),
        type(type_of(in["type"])),
        kept(in.value("kept", true)),
        test(algorithm_of(in["collectives"])),
        table(testing::tiny_config(in["layers"], 2, in["channels"], 6), {}, {0, -1}, options.persist),
        parameters(lab.memory(), *test.stream, queue, table, units, own, type, options, kept)
  {
  }

  /// Gives all parameters new values, whole numbers that depend on their place: each rank those that it owns and has.
  void update(std::int64_t seed)
  {
    for (std::size_t unit = 0; unit < own.size(); ++unit) {
      if (!kept && parameters.own()[unit].empty()) continue;
      std::vector<double> values;
      for (std::int64_t i = own[unit].first; i < own[unit].end(); ++i)
        values.push_back(static_cast<double>((7 * i + seed) % 251 + 1));
      testing::assign(parameters.own()[unit], values);
    }
    for (const Tensor& whole : parameters.whole()) all_gather(whole, test.group);
  }

  /// A micro-batch: the values that each use finds, and the bytes that are allocated then.
  /// @param turns  if given, uses but the first are made by one rank after the other. They need units that all ranks
  ///               have prefetched.
  Json pass(const std::vector<Use>& uses, Turns* turns = nullptr)
  {
    Json values = Json::array(), memory = Json::array();
    parameters.begin(uses);
    for (std::size_t u = 0; u < uses.size(); ++u) {
      // Something else is sent first, so that a use which does not wait for its parameters comes too early.
      Pending before = queue.start("another message", [](Group&) { std::this_thread::sleep_for(pause); });
      if (turns != nullptr && u > 0) turns->wait();
      const std::vector<Tensor> of_use = parameters.use(uses[u].front());
      if (turns != nullptr && u > 0) turns->pass_on();
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
  bool kept;  // whether the shards are stored here
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
  Turns turns;
  turns.wait();
  model.parameters.gather(unit);
  turns.pass_on();
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

/// 06.3: the shards of this rank, after each has got its own values. The answers are the shards, what is kept whole,
/// and what the uses of a micro-batch find, which gather the shards; the last not where shards are stored elsewhere.
const Exercise shards("06.3", [](const Json& in) -> Json {
  Model model(in);
  Json elements = Json::array(), values = Json::array(), whole = Json::array();
  for (const Tensor& shard : model.parameters.own()) elements.push_back(shard.elements());
  model.update(in["seed"]);
  for (const Tensor& shard : model.parameters.own())
    values.push_back(shard.empty() ? Json::array() : numbers(shard));
  for (const Tensor& tensor : model.parameters.whole()) whole.push_back(numbers(tensor));
  return {{"elements of the shards", elements},
          {"shards", values},
          {"whole", whole},
          {"memory", bytes_of(model.lab.ledger())},
          {"uses", model.kept ? model.pass(uses_of(in)) : Json()}};
});

/// Whether a use is refused.
bool is_refused(Model& model, std::int64_t unit)
{
  try {
    model.parameters.use(unit);
    return false;
  } catch (const Error&) {
    return true;
  }
}

/// 06.4: micro-batches. The answers are what each use finds; in turns, if no rank may wait for what it prefetches. Or
/// whether uses out of order are refused, at the beginning, in the middle and at the end.
const Exercise window("06.4", [](const Json& in) -> Json {
  Model model(in);
  model.update(in["seed"]);
  const std::vector<Use> uses = uses_of(in);
  if (in.contains("out of order")) {
    const std::size_t middle = in["out of order"];
    Json refused = Json::array({is_refused(model, 0)});
    model.parameters.begin(uses);
    for (std::size_t u = 0; u < uses.size(); ++u) {
      if (u == 0 || u == middle) refused.push_back(is_refused(model, uses[u].front() + 1));
      model.parameters.use(uses[u].front());
    }
    refused.push_back(is_refused(model, uses.front().front()));
    model.parameters.end();
    return {{"refused", refused}, {"memory", bytes_of(model.lab.ledger())}};
  }
  std::optional<Turns> turns;
  if (in["in turns"].get<bool>()) turns.emplace();
  const Json first = model.pass(uses, turns ? &*turns : nullptr);
  model.update(in["seed"].get<std::int64_t>() + 100);
  return {{"first pass", first}, {"second pass", model.pass(uses)}};
});

}  // namespace

}  // namespace rankwise::judge
