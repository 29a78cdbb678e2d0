#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/base/error.hpp"
#include "gpt2/gradient_sum.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// The gradient by central differences of the sum of losses at @p count elements of a tensor, spread over it.
std::vector<double> sampled_differences(const TinyModel& tiny, const Tensor& tensor,
                                        const std::vector<std::int64_t>& sample)
{
  std::vector<double> gradient;
  for (const std::int64_t i : sample)
    gradient.push_back(
        central_differences(tensor.slice({i, 1}), [&] { return tiny.loss(3).nats.value(); }).front());
  return gradient;
}

/// About @p count elements of @p n, spread evenly but not at a regular place of rows.
std::vector<std::int64_t> sample_of(std::int64_t n, std::int64_t count)
{
  std::vector<std::int64_t> sample;
  const std::int64_t stride = n > count ? n / count | 1 : 1;
  for (std::int64_t i = stride / 2; i < n; i += stride) sample.push_back(i);
  return sample;
}

/// Result of a global batch of 8 sequences, as micro-batches of B in the order @p firsts.
struct Step {
  Tensor gradient;
  LossSum loss;
};
Step step_of(Laboratory& lab, std::int64_t B, const std::vector<std::int64_t>& firsts, bool recompute)
{
  const TinyModel tiny(lab, tiny_config(2, 2, 16, 16), {DType::f32, B, 16, 0.1, {}, recompute});
  const std::unique_ptr<GradientSum> sum =
      make_tree_sum(lab.kernels(), lab.stream(), lab.memory(), gradient_layout(tiny.table, DType::f32));
  LossSum loss;
  for (const std::int64_t first : firsts) {
    const GradientTensors to = sum->begin({first, B});
    loss += forward_backward(tiny.model, tiny.p, model_tensors(tiny.table, to), tiny.kept, tiny.work, lab.stream(),
                             tiny.batch(first));
    sum->end({first, B});
  }
  return {lab.copied(sum->total()), loss};
}

/// The backward pass in two halves: first what the input's gradient takes, then the gradients of the parameters.
/// @param later  keeps what the second half needs.
void backward_in_halves(const TinyModel& tiny, const Deferred& later, const MicroBatch& batch)
{
  const Model& model = tiny.model;
  const Activations& kept = tiny.kept;
  const Tensor &dx = tiny.work.dstream, &output = tiny.work.output;
  const Tensor dhidden = tiny.work.wide.slice({0, output.elements()});
  model.head.logits_backward(output, kept.head, tiny.p.head, batch);
  for (const Tensor& zero : {dx, later.norm_weight, later.norm_bias}) tiny.lab.stream().zero(zero);
  model.head.normalise_backward(dx, {later.norm_weight, later.norm_bias, {}}, output, kept.head, tiny.p.head,
                                batch);
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const Branch& branch = model.branches[i];
    const DeferredBranch& l = later.branches[i];
    const Tensor doutput = branch.output_backward(dx, l.doutput, batch);
    if (doutput.raw() == dx.raw()) tiny.lab.stream().copy(l.doutput, dx);
    branch.inner_backward(l.dinner, dhidden, l.doutput, kept.branches[i], tiny.p.branches[i], batch);
    branch.normalised_backward(output, l.dinner, tiny.p.branches[i], batch);
    for (const Tensor& zero : {l.norm_weight, l.norm_bias}) tiny.lab.stream().zero(zero);
    branch.normalise_backward(dx, {l.norm_weight, l.norm_bias, {}, {}, {}, {}}, output, kept.branches[i],
                              tiny.p.branches[i], batch);
  }
  tiny.lab.stream().copy(later.stream, dx);
  for (const Tensor& scratch : {dx, output, tiny.work.wide}) tiny.lab.stream().zero(scratch);

  const Kernels& kernels = tiny.lab.kernels();
  model.head.weights_backward(tiny.d.head, kept.head, batch);
  kernels->add(tiny.d.head.norm_weight, later.norm_weight);
  kernels->add(tiny.d.head.norm_bias, later.norm_bias);
  for (std::size_t i = 0; i < model.branches.size(); ++i) {  // in any order
    const DeferredBranch& l = later.branches[i];
    const BranchTensors& d = tiny.d.branches[i];
    model.branches[i].out_bias_backward(d, l.doutput, batch);
    model.branches[i].weights_backward(d, l.doutput, l.dinner, kept.branches[i], batch);
    kernels->add(d.norm_weight, l.norm_weight);
    kernels->add(d.norm_bias, l.norm_bias);
  }
  model.embedding.backward(tiny.d.embedding, later.stream, batch);
}

}  // namespace

TEST_CASE("forward_backward: the gradient of every tensor is the one that central differences give")
{
  ModelConfig config = tiny_config(2, 2, 12, 7);  // 11 of 16 entries, 5 of 7 positions
  for (const Mask mask : {Mask{Mask::Kind::prefix, 2}, Mask{}}) {
    config.mask = mask;
    Laboratory lab;
    const TinyModel tiny(lab, config, {DType::f64, 3, 5, 0.2});
    tiny.forward_backward(3);
    const Parameter& wte = tiny.table.entries().front();
    lab.kernels()->add(tiny.gradients.slice(wte.elements), tiny.tied);
    for (const Parameter& p : tiny.table.entries()) {
      INFO(p.name << ", mask " << mask.text());
      const std::vector<std::int64_t> sample = sample_of(p.shape.elements(), 12);
      const std::vector<double> expected = sampled_differences(tiny, tiny.parameters.slice(p.elements), sample);
      std::vector<double> found;
      for (const std::int64_t i : sample) found.push_back(tiny.gradients.data<double>()[p.elements.first + i]);
      // h^2 = 1e-10 times third derivatives, which are large behind two norms of small rows, and 1e-16 |loss| / h with a
      // loss of some 20 nats over gradients of some 0.1.
      CHECK(relative_error(found, expected) < 1e-6);
    }
    for (std::int64_t i = wte.shape.elements(); i < wte.stored.elements(); ++i)
      REQUIRE(tiny.gradients.data<double>()[i] == 0);  // padding stays as it is
  }
}

TEST_CASE("place: a batch that does not fill its activations is refused")
{
  Laboratory lab;
  const TinyModel tiny(lab, tiny_config(1, 2, 12, 7), {DType::f32, 2, 5});
  const Batch smaller{1, 5, std::vector<Token>(5), std::vector<Token>(5), 5};
  CHECK_THROWS_AS(place(tiny.kept, lab.stream(), smaller, {0, 1}, 0), Error);
}

TEST_CASE("forward: padding of the vocabulary does not change the loss")
{
  Laboratory lab;
  const TinyModel tiny(lab, tiny_config(1, 2, 12, 7), {DType::f32, 2, 5});
  const double loss = tiny.loss(0).nats.value();
  for (std::int64_t i = 11 * 12; i < 16 * 12; ++i) tiny.parameters.data<float>()[i] = 50;
  CHECK(tiny.loss(0).nats.value() == loss);
}

TEST_CASE("forward: counts the targets that count, and starts near ln V with small parameters")
{
  Laboratory lab;
  ModelConfig config = tiny_config(2, 2, 16, 16);
  config.vocabulary = 251;
  const TinyModel tiny(lab, config, {DType::f32, 4, 16});
  initialize_parameters(host_stream(), tiny.parameters, tiny.table, config, 3);
  const LossSum loss = tiny.loss(0);
  std::int64_t valid = 0;
  for (const std::int32_t target : tiny.kept.targets.span<std::int32_t>()) valid += target >= 0 ? 1 : 0;
  CHECK(valid < 64);
  CHECK(loss.valid_tokens == valid);
  // Logits of deviation 0.02 sqrt(16) = 0.08 add 0.08^2 / 2 to ln V, and the targets' own logits 0.08 / sqrt(50).
  CHECK(loss.mean() == Approx(std::log(251.0)).margin(0.05));
}

TEST_CASE("forward_backward: gradients accumulate")
{
  Laboratory lab;
  const TinyModel tiny(lab, tiny_config(1, 2, 12, 7), {DType::f64, 2, 5, 0.1});
  tiny.forward_backward(0);
  const Tensor once = lab.copied(tiny.gradients), tied = lab.copied(tiny.tied);
  tiny.forward_backward(0);
  lab.kernels()->add(once, once);
  lab.kernels()->add(tied, tied);
  CHECK(relative_error(tiny.gradients, once) < 1e-14);
  CHECK(relative_error(tiny.tied, tied) < 1e-14);
}

TEST_CASE("forward_backward: with one buffer for the tied embedding, that holds the sum of both contributions")
{
  Laboratory lab;
  const TinyModel tiny(lab, tiny_config(1, 2, 12, 7), {DType::f64, 2, 5, 0.1});
  tiny.forward_backward(0);
  const Tensor together = lab.zeros(DType::f64, {tiny.table.elements()});
  forward_backward(tiny.model, tiny.p, model_tensors(tiny.table, together), tiny.kept, tiny.work, lab.stream(),
                   tiny.batch(0));
  lab.kernels()->add(tiny.gradients.slice(tiny.table.entries().front().elements), tiny.tied);
  CHECK(relative_error(together, tiny.gradients) < 1e-15);
}

TEST_CASE("forward_backward: has the same bits with 1, 2 and 3 threads")
{
  Laboratory lab;
  std::vector<TinyModel> runs;
  std::vector<double> losses;
  for (const int count : {1, 2, 3}) {
    const Threads threads(count);
    ModelConfig nano = preset("nano");
    nano.layers = 2;
    runs.emplace_back(lab, nano, TinyOptions{DType::f32, 2, 64, 0.1});
    losses.push_back(runs.back().forward_backward(0).nats.value());
    CHECK(losses.back() == losses.front());
    CHECK(different_bits(runs.back().gradients, runs.front().gradients) == 0);
    CHECK(different_bits(runs.back().tied, runs.front().tied) == 0);
  }
}

TEST_CASE("forward_backward: recomputation changes no bit")
{
  for (const DType type : {DType::f32, DType::bf16}) {
    Laboratory lab;
    const TinyModel kept(lab, tiny_config(3, 2, 16, 16), {type, 2, 13, 0.1});
    const TinyModel recomputed(lab, tiny_config(3, 2, 16, 16), {type, 2, 13, 0.1, {}, true});
    const LossSum loss = kept.forward_backward(4);
    CHECK(recomputed.forward_backward(4).nats.value() == loss.nats.value());
    CHECK(different_bits(recomputed.gradients, kept.gradients) == 0);
    CHECK(different_bits(recomputed.tied, kept.tied) == 0);
    CHECK(lab.kernels()->squared_norm(kept.gradients).value() > 0);
  }
}

TEST_CASE("forward_backward: a global batch has the same bits as 1, 2, 4, 8 micro-batches in any order")
{
  Laboratory lab;
  const Step whole = step_of(lab, 8, {0}, false);
  const std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> orders{{4, {0, 4}},
                                                                               {4, {4, 0}},
                                                                               {2, {0, 2, 4, 6}},
                                                                               {2, {4, 0, 6, 2}},
                                                                               {2, {2, 4, 6, 0}},
                                                                               {1, {0, 1, 2, 3, 4, 5, 6, 7}},
                                                                               {1, {5, 2, 7, 0, 3, 6, 1, 4}}};
  for (const auto& [B, firsts] : orders)
    for (const bool recompute : {false, true}) {
      const Step step = step_of(lab, B, firsts, recompute);
      INFO("micro-batches of " << B << ", recompute " << recompute);
      CHECK(different_bits(step.gradient, whole.gradient) == 0);
      CHECK(step.loss.nats.lanes() == whole.loss.nats.lanes());
      CHECK(step.loss.valid_tokens == whole.loss.valid_tokens);
    }
}

TEST_CASE("forward: dropout applies in training only, and with other masks in another step")
{
  Laboratory lab;
  const TinyModel with(lab, tiny_config(1, 2, 12, 7), {DType::f32, 2, 5, 0.3});
  const TinyModel without(lab, tiny_config(1, 2, 12, 7), {DType::f32, 2, 5, 0});
  const auto loss = [&](const TinyModel& tiny, bool training, std::int64_t step) {
    MicroBatch batch = tiny.batch(0);
    batch.training = training;
    batch.step = step;
    return forward(tiny.model, tiny.p, tiny.kept, tiny.work, batch).nats.value();
  };
  CHECK(loss(with, true, 0) != loss(without, true, 0));
  CHECK(loss(with, true, 0) != loss(with, true, 1));
  CHECK(loss(with, false, 0) == loss(without, true, 1));
}

TEST_CASE("forward_backward: bf16 stays near f32 of the same parameters")
{
  Laboratory lab;
  const TinyModel stored(lab, tiny_config(2, 2, 16, 16), {DType::bf16, 4, 13, 0.1});
  const TinyModel exact(lab, tiny_config(2, 2, 16, 16), {DType::f32, 4, 13, 0.1});
  assign(exact.parameters, values_of(stored.parameters));
  const double loss = exact.forward_backward(0).mean();
  // Some ten roundings of 2^-8 lie one behind the other in each pass, errors of random sign: sqrt(10) 2^-8 = 1.2 %
  // of the stream, and as much again in the gradients, which norms enlarge somewhat.
  CHECK(stored.forward_backward(0).mean() == Approx(loss).epsilon(0.01));
  CHECK(relative_error(stored.gradients, exact.gradients) < 0.05);
}

TEST_CASE("Branch, Head: the two halves of the backward pass have the bits of the whole, also with W deferred")
{
  const ModelConfig config = tiny_config(2, 2, 16, 16);
  for (const bool reference : {true, false})
    for (const double dropout : {0.0, 0.2}) {
      INFO("reference " << reference << ", dropout " << dropout);
      const Threads threads(2);
      Laboratory lab(reference ? make_reference_kernels() : make_cpu_kernels());
      const TinyOptions options{DType::f32, 2, 16, dropout};
      const TinyModel whole(lab, config, options), halves(lab, config, options);
      const Activations later(
          lab.memory(), config,
          {.type = DType::f32, .B = 2, .T = 16, .defers_weights = true, .gradients = DType::f32}, halves.work);
      whole.forward_backward(4);
      const MicroBatch batch = halves.batch(4);
      forward(halves.model, halves.p, halves.kept, halves.work, batch);
      backward_in_halves(halves, later.deferred, batch);
      CHECK(different_bits(halves.gradients, whole.gradients) == 0);
      CHECK(different_bits(halves.tied, whole.tied) == 0);
      CHECK(lab.kernels()->squared_norm(halves.gradients).value() > 0);
    }
}

TEST_CASE("Model: runs of units, one after the other, give the bits of the whole chain")
{
  const ModelConfig config = tiny_config(3, 2, 16, 16);
  Laboratory lab;
  const TinyModel whole(lab, config, {DType::f32, 2, 16, 0.2});
  const LossSum loss = whole.loss(4);
  const MicroBatch batch = whole.batch(4);
  const Tensor& output = whole.work.output;
  Tensor x = lab.zeros(DType::f32, {32, 16});
  whole.model.embedding.lookup(output, whole.p.embedding, batch);
  whole.model.embedding.add(x, output, whole.p.embedding, batch);
  std::size_t number = 0;  // of the whole chain's branches
  for (const Range& units : {Range{0, 3}, Range{3, 2}, Range{5, 3}}) {
    const Model model(whole.model.context, units);
    REQUIRE(model.branches.size() == 2);
    const Activations kept(lab.memory(), config, {.type = DType::f32, .B = 2, .T = 16, .units = units}, whole.work);
    lab.stream().copy(kept.stream(0), x);
    for (std::size_t i = 0; i < 2; ++i, ++number) {
      CHECK(model.branches[i].unit() == static_cast<int>(number) + 1);
      const BranchTensors& p = whole.p.branches[number];
      model.branches[i].normalise(kept.branches[i], p);
      model.branches[i].apply(output, kept.branches[i], p, batch);
      const Tensor next = kept.stream(i + 1).empty() ? x : kept.stream(i + 1);
      model.branches[i].add(next, kept.branches[i], output, p, batch);
      CHECK(different_bits(next, whole.kept.stream(number + 1)) == 0);
    }
    if (!kept.head.logits.empty())
      CHECK(model.head.forward(kept.head, whole.p.head, batch).nats.lanes() == loss.nats.lanes());
  }
}

TEST_CASE("place: puts tokens where they are looked up, and targets where they are compared with")
{
  Laboratory lab;
  const ModelConfig config = tiny_config(3, 2, 12, 7);
  const TinyModel whole(lab, config, {DType::f32, 2, 5});
  Batch data{2, 5, {}, {}, 10};
  for (Token t = 0; t < 10; ++t) {
    data.inputs.push_back(t);
    data.targets.push_back((3 * t) % 10);
  }
  for (const Range& units : {Range{0, 3}, Range{3, 2}, Range{5, 3}}) {
    const Activations kept(lab.memory(), config, {.type = DType::f32, .B = 2, .T = 5, .units = units}, whole.work);
    const MicroBatch batch = place(kept, lab.stream(), data, {6, 2}, 9);
    CHECK(batch.rows.sequences == Range{6, 2});
    CHECK(batch.rows.tokens == Range{0, 5});
    CHECK(batch.step == 9);
    CHECK(batch.valid_tokens == 10);
    CHECK(batch.inputs.empty() == (units.first != 0));
    CHECK(batch.targets.empty() == (units.end() != 8));
    if (!batch.inputs.empty()) CHECK(to_host<Token>(lab.stream(), batch.inputs) == data.inputs);
    if (!batch.targets.empty()) CHECK(to_host<Token>(lab.stream(), batch.targets) == data.targets);
  }
}

TEST_CASE("make_running_sum: the first backward pass of a step writes what begin() has not cleared")
{
  Laboratory lab;
  const TinyModel tiny(lab, tiny_config(2, 2, 16, 16), {DType::f32, 2, 16});
  const GradientLayout layout = gradient_layout(tiny.table, DType::f32);
  CHECK(layout.products.size() == 1 + 4 * 2);  // the token embedding, and two matrices of each branch
  const std::unique_ptr<GradientSum> sum = make_running_sum(lab.kernels(), lab.stream(), lab.memory(), layout);
  const auto add = [&](std::int64_t first, bool written) {
    const GradientTensors to = sum->begin({first, 2});
    CHECK(to.unwritten == !written);
    forward_backward(tiny.model, tiny.p, model_tensors(tiny.table, to), tiny.kept, tiny.work, lab.stream(),
                     tiny.batch(first));
  };
  // To compare with: both micro-batches added to zeros.
  const ModelTensors added = model_tensors(tiny.table, tiny.gradients);
  for (const std::int64_t first : {0, 2})
    forward_backward(tiny.model, tiny.p, added, tiny.kept, tiny.work, lab.stream(), tiny.batch(first));
  for (int step = 0; step < 2; ++step) {
    sum->clear();
    add(0, false);
    add(2, true);
    CHECK(relative_error(sum->total(), tiny.gradients) == 0);
    std::fill_n(sum->total().data<float>(), layout.elements, std::numeric_limits<float>::quiet_NaN());
  }
}
