// What ranks that own parts of a model say of it together: what one rank that has all of it would say.

#include <limits>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "common/error.hpp"
#include "lessons/04_zero1/sharded_adamw.hpp"
#include "lessons/04_zero1/shards.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;
using namespace rankwise::testing;
using Catch::Contains;

namespace {

/// A model whose parameters each rank has, and the segments of which it owns some.
struct Sharded {
  explicit Sharded(const ModelConfig& sizes, std::int64_t bucket_bytes = 20'000, std::int64_t apart = 0)
      : config(sizes),
        table(sizes, {}, {0, -1}, apart),
        segments(make_segments(buckets(table, bucket_bytes), world().ranks()))
  {
    initialize_parameters(lab.stream(), parameters, table, config, 3);
  }
  /// Those of the table; what lies apart is one more.
  static std::vector<Bucket> buckets(const ParameterTable& table, std::int64_t bytes)
  {
    if (table.apart().empty()) return make_buckets(table, DType::f32, bytes);
    return {{{0, table.units().count}, {0, table.apart().first}}, {{0, 0}, table.apart()}};
  }

  Laboratory lab;
  ModelConfig config;
  ParameterTable table;
  Tensor parameters = lab.zeros(DType::f32, {table.elements()});
  std::vector<Segment> segments;
  std::vector<Range> own = segments_of(world().rank(), segments);
  ShardedAdamW adamw{lab.memory(), lab.stream(), table, own, slices(parameters, own), AdamWOptions{}};
  Tensor room = lab.zeros(DType::f32, {block_elements(segments)});
  GroupForTest test{Algorithm::ring};
};

const ModelConfig tiny = tiny_config(2, 4, 32, 6);
const ModelConfig larger = tiny_config(1, 8, 256, 6);  // a segment is more than a block of 2^18 elements

}  // namespace

TEST_CASE("parameter_digest: that of whole parameters, though no rank looks at what others own")
{
  for (const auto& [config, bytes] : {std::pair(tiny, 1), {tiny, 20'000}, {larger, 1'000'000'000}}) {
    Sharded model(config, bytes);
    const std::string expected = parameter_digest(model.lab.stream(), model.table, model.parameters);
    const Tensor mine =
        model.lab.filled(DType::f32, {model.table.elements()}, 9);  // what others own is something else
    std::vector<Shard> shards;
    for (const Range& own : model.own) {
      model.lab.stream().copy(mine.slice(own), model.parameters.slice(own));
      shards.push_back({model.table, own, mine.slice(own), {}, {}});
    }
    CHECK(parameter_digest(model.segments, shards, model.room, model.test.group) == expected);
    mine.slice(model.own.back()).span<float>()[0] += 1;
    CHECK(parameter_digest(model.segments, shards, model.room, model.test.group) != expected);
  }
}

TEST_CASE("parameter_deviation: the sums over what each rank owns are those over the whole vector")
{
  for (const auto& [config, bytes] : {std::pair(tiny, 20'000), {larger, 1'000'000'000}}) {
    Sharded model(config, bytes);
    const Tensor other = model.lab.filled(DType::f32, {model.table.elements()}, 9);
    const std::vector<float> all = to_host<float>(model.lab.stream(), model.parameters);
    const std::vector<float> reference = to_host<float>(model.lab.stream(), other);
    const ParameterDeviation expected = parameter_deviation(all, reference);
    const std::vector<float> own = to_host(model.lab.stream(), model.adamw.shards());
    const ParameterDeviation sums =
        parameter_deviation(model.table, model.segments, own,
                            world().rank() == 0 ? reference : std::vector<float>(), model.room, model.test.group);
    CHECK(sums.squared_difference.value() == expected.squared_difference.value());
    CHECK(sums.squared_norm.value() == expected.squared_norm.value());
  }
}

TEST_CASE("parameter_digest, parameter_deviation: in the order of the table, wherever a tensor lies")
{
  for (const std::int64_t apart : {32, 128, 512}) {
    CAPTURE(apart);
    Sharded plain(tiny), model(tiny, 0, apart);  // of the same values
    const std::string expected = parameter_digest(plain.lab.stream(), plain.table, plain.parameters);
    CHECK(parameter_digest(model.segments, model.adamw.shards(), model.room, model.test.group) == expected);

    std::vector<float> reference = to_host<float>(plain.lab.stream(), plain.parameters);
    const auto deviation = [&] {
      return parameter_deviation(model.table, model.segments, to_host(model.lab.stream(), model.adamw.shards()),
                                 world().rank() == 0 ? reference : std::vector<float>(), model.room,
                                 model.test.group);
    };
    CHECK(deviation().squared_difference.value() == 0);
    CHECK(deviation().squared_norm.value() == parameter_deviation(reference, reference).squared_norm.value());
    for (const std::size_t entry : {0, 2, 4, 27}) {
      float& value = reference[static_cast<std::size_t>(plain.table.entries()[entry].elements.first + 1)];
      value += 2;
      CHECK(deviation().squared_difference.value() == Approx(4));
      value -= 2;
    }
  }
}
