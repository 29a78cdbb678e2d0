#include <vector>

#include "common/base/tree_sum.hpp"
#include "gpt2/experts/expert_layer.hpp"
#include "gpt2/gradient_sum.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

ModelConfig with_experts(std::int64_t T, const ExpertConfig& experts)
{
  ModelConfig config = tiny_config(2, 2, 16, T);
  config.experts = experts;
  return config;
}

/// The loss of three sequences and the auxiliary loss of all blocks.
double whole_loss(const TinyModel& tiny)
{
  double loss = tiny.loss(3).nats.value();
  for (std::size_t i = 0; i < tiny.model.branches.size(); ++i)
    if (tiny.model.branches[i].experts())
      loss += auxiliary_loss(tiny.lab.stream(), tiny.kept.branches[i].routed).value();
  return loss;
}

/// Holds the formulas against the bytes that are allocated.
void check_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  MemoryLedger ledger;
  const std::unique_ptr<Device> device = make_cpu_device();
  const DeviceMemory memory{device.get(), &ledger};
  const Workspace work(memory, config, shape);
  const Activations kept(memory, config, shape, work);
  CHECK(ledger.current(Tier::device)[Category::workspace] == workspace_bytes(config, shape));
  CHECK(ledger.current(Tier::device)[Category::activations] == activation_bytes(config, shape));
}

/// Gradient of 8 sequences in micro-batches of B, added as a tree.
std::vector<float> gradient_of(Laboratory& lab, const ModelConfig& config, std::int64_t B)
{
  const TinyModel tiny(lab, config, {DType::f32, B, config.context, 0.1});
  const std::unique_ptr<GradientSum> sum =
      make_tree_sum(lab.kernels(), lab.stream(), lab.memory(), gradient_layout(tiny.table, DType::f32));
  for (std::int64_t first = 0; first < 8; first += B) {
    const GradientTensors to = sum->begin({first, B});
    forward_backward(tiny.model, tiny.p, model_tensors(tiny.table, to), tiny.kept, tiny.work, lab.stream(),
                     tiny.batch(first));
    sum->end({first, B});
  }
  return to_host<float>(lab.stream(), sum->total());
}

}  // namespace

TEST_CASE("experts: the gradient of every tensor is the one that central differences give")
{
  for (const ExpertConfig& experts :
       {ExpertConfig{4, 1, 2, 0, 0.1}, ExpertConfig{3, 2, 1, 0, 0.1}, ExpertConfig{4, 2, 2, 0.8, 0.1}}) {
    const ModelConfig config = with_experts(7, experts);
    Laboratory lab;
    const TinyModel tiny(lab, config, {DType::f64, 3, 5, 0.2});
    REQUIRE(config.parameters() + 5 * config.channels == tiny.table.elements());  // 5 entries of padding
    tiny.forward_backward(3);
    lab.kernels()->add(tiny.gradients.slice(tiny.table.entries().front().elements), tiny.tied);
    for (const Parameter& p : tiny.table.entries()) {
      INFO(p.name << ", E = " << experts.count << ", k = " << experts.per_token);
      std::vector<double> expected, found;
      const std::int64_t n = p.shape.elements(), stride = n > 8 ? n / 8 | 1 : 1;
      for (std::int64_t i = p.elements.first + stride / 2; i < p.elements.first + n; i += stride) {
        expected.push_back(
            central_differences(tiny.parameters.slice({i, 1}), [&] { return whole_loss(tiny); }).front());
        found.push_back(tiny.gradients.data<double>()[i]);
      }
      double largest = 0;
      for (const double g : expected) largest = std::max(largest, std::abs(g));
      if (largest < 1e-9)  // an expert that no token chose
        for (const double g : found) CHECK(g == 0);
      else
        CHECK(relative_error(found, expected) < 1e-6);
    }
  }
}

TEST_CASE("experts: micro-batches of any size give the same bits, and so do the same rows of other leaves")
{
  Laboratory lab;
  for (const ExpertConfig& experts : {ExpertConfig{4, 1, 2, 0, 0.1}, ExpertConfig{4, 2, 1, 1.25, 0.1}}) {
    const ModelConfig config = with_experts(16, experts);
    const std::vector<float> whole = gradient_of(lab, config, 8);
    for (const std::int64_t B : {1, 2, 4}) CHECK(gradient_of(lab, config, B) == whole);
  }
}

TEST_CASE("experts: one expert is the dense model, without a router")
{
  Laboratory lab;
  const ModelConfig dense = tiny_config(2, 2, 16, 16), one = with_experts(16, {.count = 1});
  CHECK(ParameterTable(one).elements() == ParameterTable(dense).elements());
  CHECK(gradient_of(lab, one, 4) == gradient_of(lab, dense, 4));
}

TEST_CASE("experts: bytes of activations and of the workspace are those of the formulas")
{
  for (const ExpertConfig& experts : {ExpertConfig{4, 1, 2, 0, 0.1}, ExpertConfig{4, 2, 1, 1.25, 0.1}})
    for (const std::int64_t e : {1, 2, 4}) {
      const ModelConfig config = with_experts(16, experts);
      const ActivationShape whole{.type = DType::bf16, .B = 2, .T = 16, .expert_ranks = e};
      check_bytes(config, whole);
      ActivationShape divided = whole;
      divided.part = {1, 2};
      check_bytes(config, divided);
      divided.T = 4;
      divided.token_runs = 4;
      check_bytes(config, divided);
      for (const Range& units : {Range{0, 3}, Range{3, 3}}) {  // a block each
        divided.units = units;
        check_bytes(config, divided);
      }
    }
}

TEST_CASE("experts: a run of units has the experts of its own blocks")
{
  ModelConfig config = with_experts(16, {4, 1, 2, 0, 0.1});
  config.layers = 5;  // blocks 1 and 3 have experts
  const auto blocks = [&](const Range& units) {
    const ActivationShape shape{.type = DType::f32, .B = 1, .T = 16, .units = units};
    return Range{shape.first_block(), shape.expert_blocks(config)};
  };
  CHECK(blocks({0, -1}) == Range{0, 2});
  CHECK(blocks({0, 3}) == Range{0, 0});
  CHECK(blocks({3, 2}) == Range{1, 1});
  CHECK(blocks({3, 6}) == Range{1, 2});
  CHECK(blocks({5, 4}) == Range{2, 1});
  CHECK(blocks({9, 3}) == Range{4, 0});
}

TEST_CASE("experts: a run of tokens may send all rows that the capacity for whole sequences allows")
{
  const ModelConfig config = with_experts(16, {4, 2, 2, 0.5, 0.1});
  REQUIRE(config.experts.capacity(16) == 4);
  ActivationShape shape{.type = DType::f32, .B = 3, .T = 16, .expert_ranks = 4};
  CHECK(shape.most_sent(config) == 3 * 16);         // 4 for each of 4 experts
  CHECK(shape.most_received(config) == 4 * 3 * 4);  // 4 of each of 4 ranks
  shape.T = 4;
  shape.token_runs = 4;
  CHECK(shape.most_sent(config) == 3 * 8);          // all choices
  CHECK(shape.most_received(config) == 4 * 3 * 4);  // those of all tokens
  shape.T = 2;
  shape.token_runs = 8;
  CHECK(shape.most_received(config) == 4 * 3 * 2);
}

namespace {

/// The experts of block 1 of a model or of a part of it, over the same normalised rows.
struct TestedLayer {
  TestedLayer(TinyModel& tiny, const Tensor& normalised) : m(tiny), batch(m.batch(0))
  {
    m.lab.stream().copy(a.normalised, normalised);
    layer.route(m.work.experts, a, p.router, batch);
    rows = layer.count(layer.plan(a.routed, batch).leaves, a.routed, batch);
    layer.scatter(a.routed.received, a);
  }
  void forward() { layer.forward(a.routed.returned, a.routed, p.experts, rows); }
  void backward(const Tensor& doutput)
  {
    layer.combine_backward(m.work.experts.output, m.work.experts, doutput, a.routed);
    layer.backward(m.work.experts, m.d.branches[3].experts, a.routed, p.experts, rows, 0);
  }
  /// The rows that were routed, of a tensor that has room for more.
  Tensor routed(const Tensor& tensor) const { return tensor.slice({0, rows.all() * tensor.extent(1)}); }

  TinyModel& m;
  MicroBatch batch;
  const BranchActivations& a = m.kept.branches[3];
  const BranchTensors& p = m.p.branches[3];
  ExpertLayer layer{m.model.context};
  ExpertRows rows{{}, 1, 1};
};

/// Adds up what the parts have in @p which(part), neighbours first, and leaves the sum in all of them.
template <class Which>
void all_reduce(Laboratory& lab, std::vector<std::unique_ptr<TestedLayer>>& parts, const Which& which)
{
  std::vector<Tensor> sums;
  for (const auto& part : parts) sums.push_back(part->routed(which(*part)));
  tree_over(std::ssize(sums), [&](std::size_t i, std::size_t j) { lab.kernels()->add(sums[i], sums[j]); });
  for (const Tensor& sum : sums) lab.stream().copy(sum, sums.front());
}

}  // namespace

TEST_CASE("experts: n parts of each expert, with sums over the parts, are the whole expert bit for bit")
{
  for (const int n : {2, 4})
    for (const double capacity : {0.0, 0.75}) {
      CAPTURE(n, capacity);
      Laboratory lab;
      ModelConfig config = tiny_config(2, 4, 16, 16);
      config.experts = {4, 2, 2, capacity, 0.1};
      const TinyOptions options{.type = DType::f32, .B = 2, .T = 16};
      const Tensor normalised = lab.filled(DType::f32, {32, 16}, 1), doutput = lab.filled(DType::f32, {32, 16}, 2);
      TinyModel whole_model(lab, config, options);
      TestedLayer whole(whole_model, normalised);
      whole.forward();
      whole.backward(doutput);
      std::vector<std::unique_ptr<TinyModel>> models;
      std::vector<std::unique_ptr<TestedLayer>> parts;
      for (int i = 0; i < n; ++i) {
        TinyOptions mine = options;
        mine.part = {i, n};
        TinyModel& part = *models.emplace_back(std::make_unique<TinyModel>(lab, config, mine));
        lab.stream().copy(part.parameters, part_of(lab, part.table, whole_model.table, whole_model.parameters));
        parts.push_back(std::make_unique<TestedLayer>(part, normalised));
        parts.back()->forward();
      }
      const auto returned = [](const TestedLayer& l) { return l.a.routed.returned; };
      const auto inputs = [](const TestedLayer& l) { return l.m.work.experts.output; };
      all_reduce(lab, parts, returned);
      for (const auto& part : parts) {
        CHECK(different_bits(part->routed(returned(*part)), whole.routed(returned(whole))) > 0);
        part->layer.add_bias(returned(*part), part->p.experts, part->rows);
        CHECK(different_bits(part->routed(returned(*part)), whole.routed(returned(whole))) == 0);
        part->backward(doutput);
      }
      all_reduce(lab, parts, inputs);
      for (const auto& part : parts) {
        CHECK(different_bits(part->routed(inputs(*part)), whole.routed(inputs(whole))) == 0);
        CHECK(different_bits(part->m.gradients,
                             part_of(lab, part->m.table, whole_model.table, whole_model.gradients)) == 0);
      }
    }
}
