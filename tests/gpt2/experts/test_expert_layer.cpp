#include <vector>

#include <catch2/catch.hpp>

#include "gpt2/experts/expert_layer.hpp"
#include "gpt2/gradient_sum.hpp"
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

/// Gradient of 8 sequences in micro-batches of B, added as a tree.
std::vector<float> gradient_of(Laboratory& lab, const ModelConfig& config, std::int64_t B)
{
  const TinyModel tiny(lab, config, {DType::f32, B, config.context, 0.1});
  const std::unique_ptr<GradientSum> sum =
      make_tree_sum(lab.kernels(), lab.stream(), lab.memory(), gradient_layout(tiny.table, DType::f32));
  for (std::int64_t first = 0; first < 8; first += B) {
    const GradientTensors to = sum->begin({first, B});
    forward_backward(tiny.model, tiny.p, model_tensors(tiny.table, to.flat, to.tied), tiny.kept, tiny.work,
                     lab.stream(), tiny.batch(first));
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
    lab.kernels().add(tiny.gradients.slice(tiny.table.entries().front().elements), tiny.tied);
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
      const ActivationShape shape{.type = DType::bf16, .B = 2, .T = 16, .expert_ranks = e};
      MemoryLedger ledger;
      const std::unique_ptr<Device> device = make_cpu_device();
      const DeviceMemory memory{device.get(), &ledger};
      const Workspace work(memory, config, shape);
      const Activations kept(memory, config, shape, work);
      CHECK(ledger.current(Tier::device)[Category::workspace] == workspace_bytes(config, shape));
      CHECK(ledger.current(Tier::device)[Category::activations] == activation_bytes(config, shape));
    }
}
