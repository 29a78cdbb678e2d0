// What the ranks that divide a model say of it together: what one rank that has all of it would say.

#include <vector>

#include <catch2/catch.hpp>

#include "lessons/08_tensor_parallel/whole_tensors.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// A model of which each rank has its part, and all of it to compare with.
struct Divided {
  explicit Divided(const ModelConfig& sizes) : config(sizes)
  {
    initialize_parameters(lab.stream(), all, whole, config, 3);
    initialize_parameters(lab.stream(), own, table, config, 3);
  }
  std::string expected() { return parameter_digest(lab.stream(), whole, all); }
  std::string digest() { return parameter_digest(divided_model(config, table, own, test.group), room); }

  Laboratory lab;
  ModelConfig config;
  ParameterTable whole{config}, table{config, {world().rank(), world().ranks()}};
  Tensor all = lab.zeros(DType::f32, {whole.elements()}), own = lab.zeros(DType::f32, {table.elements()});
  GroupForTest test{Algorithm::ring};
  Tensor room = lab.zeros(DType::f32, {whole_block_elements(table)});
};

// Twelve heads, which 1, 2, 3 and 4 parts divide; 11 entries, of which some parts have nothing but padding; and so many
// entries that the token embedding is more than a block.
const ModelConfig small = tiny_config(2, 12, 48, 6);
const ModelConfig large{"large", 1, 12, 48, 6, 12'001, {}};

}  // namespace

TEST_CASE("for_each_whole_block: all elements of all tensors in the order of the table, on every rank")
{
  for (const ModelConfig& config : {small, large}) {
    Divided model(config);
    std::vector<float> values;
    std::vector<std::size_t> tensors;
    std::int64_t next = 0, wrong = 0;
    for_each_whole_block(
        divided_model(config, model.table, model.own, model.test.group), model.room, [&](const WholeBlock& block) {
          if (tensors.empty() || tensors.back() != block.tensor) next = 0;
          wrong += block.elements.first != next || block.elements.count != std::ssize(block.values);
          next = block.elements.end();
          tensors.push_back(block.tensor);
          values.insert(values.end(), block.values.begin(), block.values.end());
        });
    std::vector<float> expected;
    for (const Parameter& p : model.whole.entries()) {
      const std::vector<float> tensor =
          to_host<float>(model.lab.stream(), model.all.slice({p.elements.first, p.shape.elements()}));
      expected.insert(expected.end(), tensor.begin(), tensor.end());
    }
    CHECK(wrong == 0);
    CHECK((values == expected));
    CHECK(std::is_sorted(tensors.begin(), tensors.end()));
    CHECK(tensors.size() == model.whole.entries().size() + (config.name == "large" ? 2 : 0));
  }
}

TEST_CASE("parameter_digest: that of the whole model; it sees what each part has, and no padding")
{
  for (const ModelConfig& config : {small, large}) {
    Divided model(config);
    const bool same = model.digest() == model.expected();
    CHECK(same);
    std::vector<bool> sees;
    for (int part = 0; part < world().ranks(); ++part)
      for (const std::size_t tensor : {0, 4, 5, 6}) {  // divided by rows, by columns
        if (config.name == "large" && tensor > 0) continue;
        const Parameter& p = model.table.entries()[tensor];
        const std::vector<Slab> slabs = model.table.slabs(p);
        const bool nothing = slabs.front().rows.empty();
        float& value = model.own.data<float>()[p.elements.first + (nothing ? 0 : p.elements.count / 3)];
        const bool changes = part == world().rank();
        const float kept = value;
        if (changes) value += 1;
        std::int64_t padding = changes && nothing ? 1 : 0;
        all_reduce_sum(padding, model.test.group);
        sees.push_back((model.digest() == model.expected()) == (padding > 0));
        value = kept;
      }
    for (const bool seen : sees) CHECK(seen);
    CHECK(model.digest() == model.expected());
  }
}

TEST_CASE("parameter_digest: of what all parts have it is part 0's that counts")
{
  Divided model(small);
  const Parameter& norm = model.table.entries()[2];
  if (world().rank() == world().ranks() - 1) model.own.data<float>()[norm.elements.first] += 1;
  const std::string digest = model.digest();
  CHECK((digest == model.expected()) == (world().ranks() > 1));
}

TEST_CASE("parameter_deviation: the sums over what each part has are those over the whole vector")
{
  for (const ModelConfig& config : {small, large}) {
    Divided model(config);
    Tensor other = model.lab.filled(DType::f32, {model.whole.elements()}, 9);
    const Parameter& wte = model.whole.entries().front();
    model.lab.stream().zero(other.slice({wte.shape.elements(), wte.elements.count - wte.shape.elements()}));
    const std::vector<float> reference = to_host<float>(model.lab.stream(), other);
    const ParameterDeviation expected =
        parameter_deviation(to_host<float>(model.lab.stream(), model.all), reference);
    const ParameterDeviation found =
        parameter_deviation(divided_model(config, model.table, model.own, model.test.group),
                            world().rank() == 0 ? reference : std::vector<float>(), model.room);
    if (world().rank() == 0) {
      CHECK(found.squared_difference.value() == expected.squared_difference.value());
      CHECK(found.squared_norm.value() == expected.squared_norm.value());
    }
  }
}

TEST_CASE("whole_block_elements: 2^18 elements of whole rows, or the part of them that a tensor's columns have")
{
  const std::int64_t N = world().ranks();
  const ParameterTable of_small(small, {world().rank(), world().ranks()}),
      of_large(large, {world().rank(), world().ranks()});
  CHECK(whole_block_elements(of_small) == 48 * 192 / N);
  const std::int64_t stored = large.stored_vocabulary(N) * 48;
  CHECK(whole_block_elements(of_large) == std::min<std::int64_t>(stored, (1 << 18) / 48 * 48));
}
