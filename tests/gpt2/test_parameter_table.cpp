#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "gpt2/parameter_table.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

const ModelConfig config = tiny_config(2, 8, 32, 6);

std::vector<int> covered(const ParameterTable& table, const Parameter& p)
{
  std::vector<int> stored(static_cast<std::size_t>(p.stored.elements()));
  const std::int64_t columns = p.stored[p.stored.rank() - 1];
  for (const Slab& slab : table.slabs(p))
    for (std::int64_t r = 0; r < slab.rows.count; ++r)
      for (std::int64_t c = 0; c < slab.columns.count; ++c)
        ++stored.at(static_cast<std::size_t>((slab.stored_row + r) * columns + slab.stored_column + c));
  return stored;
}

/// Mean and standard deviation.
std::pair<double, double> moments(const std::vector<double>& values)
{
  double mean = 0, square = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  for (const double value : values) square += (value - mean) * (value - mean) / static_cast<double>(values.size());
  return {mean, std::sqrt(square)};
}

}  // namespace

TEST_CASE("ParameterTable: has Hugging Face's names and shapes, in its order")
{
  const std::vector<std::pair<std::string, Shape>> expected{{"wte.weight", {11, 32}},
                                                            {"wpe.weight", {6, 32}},
                                                            {"h.0.ln_1.weight", {32}},
                                                            {"h.0.ln_1.bias", {32}},
                                                            {"h.0.attn.c_attn.weight", {32, 96}},
                                                            {"h.0.attn.c_attn.bias", {96}},
                                                            {"h.0.attn.c_proj.weight", {32, 32}},
                                                            {"h.0.attn.c_proj.bias", {32}},
                                                            {"h.0.ln_2.weight", {32}},
                                                            {"h.0.ln_2.bias", {32}},
                                                            {"h.0.mlp.c_fc.weight", {32, 128}},
                                                            {"h.0.mlp.c_fc.bias", {128}},
                                                            {"h.0.mlp.c_proj.weight", {128, 32}},
                                                            {"h.0.mlp.c_proj.bias", {32}},
                                                            {"h.1.ln_1.weight", {32}},
                                                            {"h.1.ln_1.bias", {32}},
                                                            {"h.1.attn.c_attn.weight", {32, 96}},
                                                            {"h.1.attn.c_attn.bias", {96}},
                                                            {"h.1.attn.c_proj.weight", {32, 32}},
                                                            {"h.1.attn.c_proj.bias", {32}},
                                                            {"h.1.ln_2.weight", {32}},
                                                            {"h.1.ln_2.bias", {32}},
                                                            {"h.1.mlp.c_fc.weight", {32, 128}},
                                                            {"h.1.mlp.c_fc.bias", {128}},
                                                            {"h.1.mlp.c_proj.weight", {128, 32}},
                                                            {"h.1.mlp.c_proj.bias", {32}},
                                                            {"ln_f.weight", {32}},
                                                            {"ln_f.bias", {32}}};
  const ParameterTable table(config);
  REQUIRE(table.entries().size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Parameter& p = table.entries()[i];
    INFO(p.name);
    CHECK(p.name == expected[i].first);
    CHECK(p.shape == expected[i].second);
    CHECK(p.number == static_cast<int>(i));
    CHECK(p.decays == (p.shape.rank() == 2));  // matrices only
  }
}

TEST_CASE("ParameterTable: natural shapes add up to the published numbers of parameters")
{
  for (const std::string& name : preset_names()) {
    const ParameterTable table(preset(name));
    std::int64_t natural = 0, padding = 0;
    for (const Parameter& p : table.entries()) {
      natural += p.shape.elements();
      padding += p.stored.elements() - p.shape.elements();
    }
    INFO(name);
    CHECK(natural == preset(name).parameters());
    CHECK(padding == (preset(name).padded_vocabulary() - preset(name).vocabulary) * preset(name).channels);
    CHECK(table.elements() == natural + padding);
  }
}

TEST_CASE("unit_elements: entries and units tile the flat vector without gaps, for tables of any run of units")
{
  for (const Range units : {Range{0, -1}, Range{0, 3}, Range{3, 2}, Range{5, 1}})
    for (const Part part : {Part{0, 1}, Part{3, 4}}) {
      const ParameterTable table(config, part, units);
      std::int64_t next = 0;
      for (const Parameter& p : table.entries()) {
        CHECK(p.elements == Range{next, p.stored.elements()});
        CHECK(table.units().contains(p.unit));
        next = p.elements.end();
      }
      CHECK(next == table.elements());
      next = 0;
      for (std::int64_t unit = 0; unit < unit_count(config); ++unit) {
        const Range elements = table.unit_elements(static_cast<int>(unit));
        CHECK(elements.empty() == !table.units().contains(unit));
        if (elements.empty()) continue;
        CHECK(elements.first == next);
        next = elements.end();
      }
      CHECK(next == table.elements());
    }
}

TEST_CASE("ParameterTable: replicated tensors follow all others, in the same order")
{
  for (const std::int64_t replicated : {0, 31, 32, 96, 128, 192, 512, 4096, 1'000'000})
    for (const Part part : {Part{0, 1}, Part{3, 4}}) {
      CAPTURE(replicated, part.count);
      const ParameterTable table(config, part, {0, -1}, replicated), plain(config, part);
      REQUIRE(table.entries().size() == plain.entries().size());
      std::int64_t next[] = {0, table.replicated().first};
      for (std::size_t i = 0; i < table.entries().size(); ++i) {
        const Parameter& p = table.entries()[i];
        CHECK(p.name == plain.entries()[i].name);
        CHECK(p.number == static_cast<int>(i));
        const bool small = p.stored.elements() <= replicated;
        CHECK(p.elements == Range{next[small], p.stored.elements()});
        next[small] = p.elements.end();
      }
      CHECK(next[0] == table.replicated().first);
      CHECK(next[1] == table.elements());
      CHECK(table.replicated().end() == table.elements());
      CHECK(table.elements() == plain.elements());
    }
  CHECK(ParameterTable(config).replicated().empty());
}

TEST_CASE("unit_elements: the elements of a unit that are not replicated have no gaps, and may be none")
{
  for (const std::int64_t replicated : {32, 128, 512, 1'000'000}) {
    const ParameterTable table(config, {}, {0, -1}, replicated);
    std::int64_t next = 0;
    for (int unit = 0; unit < unit_count(config); ++unit) {
      const Range elements = table.unit_elements(unit);
      std::int64_t expected = 0;
      for (const Parameter& p : table.entries())
        if (p.unit == unit && p.stored.elements() > replicated) expected += p.stored.elements();
      CAPTURE(replicated, unit);
      CHECK(elements.count == expected);
      if (expected > 0) CHECK(elements.first == next);
      next += expected;
    }
    CHECK(next == table.replicated().first);
  }
}

TEST_CASE("unit_tensors: in the order of the table, whether they are replicated or not")
{
  Laboratory lab;
  for (const std::int64_t border : {0, 32, 128, 512, 1'000'000}) {
    const ParameterTable table(config, {}, {0, -1}, border);
    const Tensor flat = lab.zeros(DType::f32, {table.elements()}), replicated = flat.slice(table.replicated());
    for (int unit = 0; unit < unit_count(config); ++unit) {
      CAPTURE(border, unit);
      const std::vector<Tensor> tensors =
          unit_tensors(table, unit, flat.slice(table.unit_elements(unit)), replicated);
      std::size_t i = 0;
      for (const Parameter& p : table.entries()) {
        if (p.unit != unit) continue;
        REQUIRE(i < tensors.size());
        CHECK(tensors[i].raw() == flat.raw() + 4 * p.elements.first);
        CHECK(tensors[i++].shape() == p.stored);
      }
      CHECK(i == tensors.size());
    }
  }
}

TEST_CASE("ParameterTable: any number of parts that divides the heads; of 16 entries 3 parts store 6 each")
{
  const ModelConfig three = tiny_config(2, 6, 48, 6);
  for (int i = 0; i < 3; ++i) {
    const ParameterTable table(three, {i, 3});
    const Parameter& wte = table.entries().front();
    CHECK(wte.shape == Shape{11, 48});
    CHECK(wte.stored == Shape{6, 48});
    CHECK(table.slabs(wte)[0].rows.count == (i == 0   ? 6
                                             : i == 1 ? 5
                                                      : 0));  // the last part has nothing but padding
    CHECK(table.entries()[4].stored == Shape{48, 48});
    CHECK(table.entries()[12].stored == Shape{64, 48});
    CHECK(table.entries()[13].stored == Shape{48});
  }
  CHECK(three.stored_vocabulary(1) == 16);
  CHECK(three.stored_vocabulary(3) == 6);
  CHECK(preset("gpt2").stored_vocabulary(4) == 12566);  // 50,264 / 4
}

TEST_CASE("slabs: those of all parts cover each element of a divided tensor once, of others once a part")
{
  for (const int n : {1, 2, 3, 4, 6, 8}) {
    const ModelConfig divided = n % 3 == 0 ? tiny_config(2, 6, 48, 6) : config;
    const std::int64_t stored_rows = divided.stored_vocabulary(n);
    const ParameterTable whole(divided);
    std::vector<std::vector<int>> seen;
    for (const Parameter& p : whole.entries()) seen.emplace_back(static_cast<std::size_t>(p.shape.elements()));
    for (int i = 0; i < n; ++i) {
      const ParameterTable table(divided, {i, n});
      std::int64_t padding = 0;
      for (const Parameter& p : table.entries()) {
        const std::int64_t columns = p.shape[p.shape.rank() - 1];
        std::vector<int>& elements = seen[static_cast<std::size_t>(p.number)];
        for (const Slab& slab : table.slabs(p))
          for (std::int64_t r = slab.rows.first; r < slab.rows.end(); ++r)
            for (std::int64_t c = slab.columns.first; c < slab.columns.end(); ++c)
              ++elements.at(static_cast<std::size_t>(r * columns + c));
        const std::vector<int> stored = covered(table, p);
        CHECK(std::count_if(stored.begin(), stored.end(), [](int count) { return count > 1; }) == 0);
        padding += std::count(stored.begin(), stored.end(), 0);
      }
      // only rows of the vocabulary are padding: this part's from entry 11 on
      const std::int64_t entries = intersect({stored_rows * i, stored_rows}, {0, 11}).count;
      CHECK(padding == (stored_rows - entries) * divided.channels);
    }
    for (const Parameter& p : whole.entries()) {
      INFO(p.name << " of " << n << " parts");
      const std::vector<int>& elements = seen[static_cast<std::size_t>(p.number)];
      CHECK(std::count(elements.begin(), elements.end(), p.split == Split::none ? n : 1) == p.shape.elements());
    }
  }
}

TEST_CASE("ParameterTable: parts that cannot be equal are refused")
{
  const ModelConfig mini = preset("mini");  // 6 heads
  for (const int n : {1, 2, 3, 6}) CHECK_NOTHROW(ParameterTable(mini, {0, n}));
  for (const int n : {4, 5, 12}) CHECK_THROWS_AS(ParameterTable(mini, {0, n}), Error);
}

TEST_CASE("slabs: an expert is divided as an MLP is, and the router is not")
{
  ModelConfig with_experts = config;
  with_experts.experts = {.count = 2, .per_token = 1, .every = 2};
  const ParameterTable table(with_experts, {3, 4});
  const auto of = [&](const std::string& name) {
    return *std::find_if(table.entries().begin(), table.entries().end(),
                         [&](const Parameter& p) { return p.name == "h.1.mlp." + name; });
  };
  CHECK(of("router.weight").stored == Shape{32, 2});
  CHECK(of("router.weight").split == Split::none);
  CHECK(of("experts.1.c_fc.weight").stored == Shape{32, 32});
  CHECK(table.slabs(of("experts.1.c_fc.weight")).front().columns == Range{96, 32});
  CHECK(table.slabs(of("experts.1.c_fc.bias")).front().columns == Range{96, 32});
  CHECK(table.slabs(of("experts.1.c_proj.weight")).front().rows == Range{96, 32});
  CHECK(of("experts.1.c_proj.bias").stored == Shape{32});
  CHECK(of("experts.1.c_proj.bias").split == Split::none);
}

TEST_CASE("slabs: a part of c_attn is the same heads of q, of k and of v")
{
  const ParameterTable table(config, {3, 4});
  const std::vector<Slab> slabs = table.slabs(table.entries()[4]);
  REQUIRE(slabs.size() == 3);
  for (std::int64_t s = 0; s < 3; ++s) {
    const Slab& slab = slabs[static_cast<std::size_t>(s)];
    CHECK(slab.columns == Range{s * 32 + 24, 8});  // heads 6 and 7, of 4 channels each
    CHECK(slab.rows == Range{0, 32});
    CHECK(slab.stored_column == s * 8);
  }
}

TEST_CASE("initialize_parameters: is N(0, 0.02), smaller where a branch ends; ones and zeros; padding zero")
{
  Laboratory lab;
  ModelConfig larger = preset("nano");
  larger.vocabulary = 251;
  const ParameterTable table(larger);
  const Tensor flat = lab.filled(DType::f32, {table.elements()}, 1);
  initialize_parameters(host_stream(), flat, table, larger, 17);
  for (const Parameter& p : table.entries()) {
    INFO(p.name);
    const auto [mean, deviation] = moments(values_of(flat.slice({p.elements.first, p.shape.elements()})));
    const bool residual = p.name.find("c_proj.weight") != std::string::npos;
    const bool norm_weight = p.shape.rank() == 1 && p.name.find("ln_") != std::string::npos &&
                             p.name.find("weight") != std::string::npos;
    const double expected = p.shape.rank() == 1 ? 0 : residual ? 0.02 / std::sqrt(8.0) : 0.02;
    const double n = static_cast<double>(p.shape.elements());
    // four standard deviations of the mean and of the deviation of n samples
    CHECK(std::abs(mean - (norm_weight ? 1 : 0)) <= 4 * expected / std::sqrt(n));
    CHECK(std::abs(deviation - expected) <= 4 * expected / std::sqrt(2 * n));
  }
  const Parameter& wte = table.entries().front();
  const Tensor padding = flat.slice({wte.shape.elements(), wte.stored.elements() - wte.shape.elements()});
  CHECK(padding.elements() == 5 * 64);
  CHECK(lab.kernels()->squared_norm(padding).value() == 0);

  const Tensor other = lab.zeros(DType::f32, {table.elements()});
  initialize_parameters(host_stream(), other, table, larger, 18);
  CHECK(different_bits(other.slice({0, 1000}), flat.slice({0, 1000})) > 990);  // the seed matters
}

TEST_CASE("initialize_parameters: no value depends on part or units, or on the type but for rounding")
{
  Laboratory lab;
  const ParameterTable whole(config);
  const Tensor flat = lab.zeros(DType::f32, {whole.elements()});
  initialize_parameters(host_stream(), flat, whole, config, 17);
  for (const int n : {1, 2, 4, 8})
    for (int i = 0; i < n; ++i)
      for (const Range units : {Range{0, -1}, Range{2, 3}, Range{5, 1}}) {
        const ParameterTable table(config, {i, n}, units);
        const Tensor mine = lab.filled(DType::f32, {table.elements()}, 1);
        initialize_parameters(host_stream(), mine, table, config, 17);
        CHECK(different_bits(mine, part_of(lab, table, whole, flat)) == 0);
      }
  const ModelConfig six = tiny_config(2, 6, 48, 6);
  const ParameterTable whole_of_six(six);
  const Tensor of_six = lab.zeros(DType::f32, {whole_of_six.elements()});
  initialize_parameters(host_stream(), of_six, whole_of_six, six, 17);
  for (const Part part : {Part{0, 3}, Part{1, 3}, Part{2, 3}, Part{5, 6}}) {
    const ParameterTable table(six, part);
    const Tensor mine = lab.filled(DType::f32, {table.elements()}, 1);
    initialize_parameters(host_stream(), mine, table, six, 17);
    CHECK(different_bits(mine, part_of(lab, table, whole_of_six, of_six)) == 0);
  }
  for (const DType type : {DType::bf16, DType::f64}) {
    const Tensor other = lab.zeros(type, {whole.elements()});
    initialize_parameters(host_stream(), other, whole, config, 17);
    if (type == DType::f64)
      CHECK(different_bits(lab.converted(other, DType::f32), flat) == 0);
    else
      CHECK(different_bits(lab.converted(flat, DType::bf16), other) == 0);
  }
}

TEST_CASE("initialize_parameters: a run of elements has the values that it has in the whole vector")
{
  Laboratory lab;
  for (const Part part : {Part{0, 1}, Part{1, 2}}) {
    const ParameterTable table(config, part);
    const Tensor flat = lab.zeros(DType::f32, {table.elements()});
    initialize_parameters(host_stream(), flat, table, config, 17);
    for (const int runs : {1, 2, 3, 7, 100})
      for (int r = 0; r < runs; ++r) {
        const Range run = Partition(table.elements(), runs).shard(r);
        const Tensor mine = lab.filled(DType::f32, {run.count}, 1);
        initialize_parameters(host_stream(), mine, table, config, 17, run.first);
        CHECK(different_bits(mine, flat.slice(run)) == 0);
      }
    CHECK_THROWS(initialize_parameters(host_stream(), flat, table, config, 17, 1));
  }
}

TEST_CASE("initialize_parameters: a tensor that is replicated has the values that it has elsewhere")
{
  Laboratory lab;
  const ParameterTable plain(config), table(config, {}, {0, -1}, 128);
  const Tensor expected = lab.zeros(DType::f32, {plain.elements()}),
               flat = lab.zeros(DType::f32, {table.elements()});
  initialize_parameters(host_stream(), expected, plain, config, 17);
  initialize_parameters(host_stream(), flat, table, config, 17);
  for (std::size_t i = 0; i < table.entries().size(); ++i)
    CHECK(different_bits(flat.slice(table.entries()[i].elements), expected.slice(plain.entries()[i].elements)) ==
          0);
  const Range across{table.replicated().first - 100, 200};  // of both
  const Tensor part = lab.filled(DType::f32, {across.count}, 1);
  initialize_parameters(host_stream(), part, table, config, 17, across.first);
  CHECK(different_bits(part, flat.slice(across)) == 0);
  CHECK(parameter_digest(host_stream(), table, flat) == parameter_digest(host_stream(), plain, expected));
}

TEST_CASE("model_tensors: views the tensors where the table says; the tied gradient may be a separate sum")
{
  Laboratory lab;
  const ParameterTable table(config);
  const Tensor flat = lab.zeros(DType::f32, {table.elements()});
  const ModelTensors model = model_tensors(table, flat);
  const auto stands_for = [&](const Tensor& view, std::size_t entry) {
    const Parameter& p = table.entries()[entry];
    return view.raw() == flat.raw() + p.elements.first * 4 && view.shape() == p.stored;
  };
  CHECK(stands_for(model.embedding.token, 0));
  CHECK(stands_for(model.embedding.position, 1));
  REQUIRE(model.branches.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(stands_for(model.branches[i].norm_weight, 2 + 6 * i));
    CHECK(stands_for(model.branches[i].norm_bias, 3 + 6 * i));
    CHECK(stands_for(model.branches[i].in_weight, 4 + 6 * i));
    CHECK(stands_for(model.branches[i].in_bias, 5 + 6 * i));
    CHECK(stands_for(model.branches[i].out_weight, 6 + 6 * i));
    CHECK(stands_for(model.branches[i].out_bias, 7 + 6 * i));
  }
  CHECK(stands_for(model.head.norm_weight, 26));
  CHECK(stands_for(model.head.norm_bias, 27));
  CHECK(stands_for(model.head.token, 0));

  const Tensor tied = lab.zeros(DType::f32, {16 * 32});
  CHECK(model_tensors(table, flat, tied).head.token.raw() == tied.raw());
  CHECK(stands_for(model_tensors(table, flat, tied).embedding.token, 0));
}

TEST_CASE("parameter_digest: sees every parameter and no padding")
{
  Laboratory lab;
  const ParameterTable table(config);
  const Tensor flat = lab.filled(DType::f32, {table.elements()}, 1);
  const std::string digest = parameter_digest(host_stream(), table, flat);
  CHECK(digest.size() == 64);
  float* const element = flat.data<float>();
  for (std::int64_t i = 11 * 32; i < 16 * 32; ++i) element[i] = 7;
  CHECK(parameter_digest(host_stream(), table, flat) == digest);
  for (const Parameter& p : table.entries())
    for (const std::int64_t i : {p.elements.first, p.elements.first + p.shape.elements() - 1}) {
      const float kept = element[i];
      element[i] = std::nextafter(kept, 2.0f);
      INFO(p.name);
      CHECK(parameter_digest(host_stream(), table, flat) != digest);
      element[i] = kept;
    }
  CHECK(parameter_digest(host_stream(), table, flat) == digest);
}
