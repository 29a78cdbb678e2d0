#include <cmath>
#include <vector>

#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/bert/tiny_bert.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr double pair_weight = 2.5;  // other than 1, so that a weight that is left out shows
constexpr std::int64_t T = 8;
const std::vector<std::int64_t> lengths{8, 5, 7, 1};  // the third pair is not counted

/// The gradient of the weighted sum of both losses at some elements of @p p, by central differences.
std::vector<double> differences(const TinyBert& tiny, const PairMicroBatch& batch, const Parameter& p,
                                const std::vector<std::int64_t>& sample)
{
  std::vector<double> gradient;
  for (const std::int64_t i : sample)
    gradient.push_back(central_differences(tiny.parameters.slice({p.elements.first + i, 1}), [&] {
                         const BertLoss loss = tiny.forward_backward(batch);
                         return loss.tokens.nats.value() + pair_weight * loss.pairs.nats.value();
                       }).front());
  return gradient;
}

/// About 12 elements of @p n, spread evenly but not at a regular place of rows.
std::vector<std::int64_t> sample_of(std::int64_t n)
{
  std::vector<std::int64_t> sample;
  const std::int64_t stride = n > 12 ? n / 12 | 1 : 1;
  for (std::int64_t i = stride / 2; i < n; i += stride) sample.push_back(i);
  return sample;
}

}  // namespace

TEST_CASE("BERT forward_backward: the gradient of every tensor is the one that central differences give")
{
  // The same masks of dropout in each pass, or else differences would be of unlike functions.
  for (const double dropout : {0.0, 0.2}) {
    Laboratory lab;
    const ModelConfig config = tiny_bert_config(2, 2, 12, 9);
    const TinyBert tiny(lab, config, {DType::f64, std::ssize(lengths), T, dropout});
    const PairMicroBatch batch = tiny.placed(pairs_of(config, T, lengths), pair_weight);
    tiny.forward_backward(batch);
    const std::vector<double> gradient = tiny.whole_gradient();
    for (const Parameter& p : tiny.table.entries()) {
      INFO(p.name << ", dropout " << dropout);
      const std::vector<std::int64_t> sample = sample_of(p.shape.elements());
      std::vector<double> found;
      for (const std::int64_t i : sample) found.push_back(elements_of(gradient, p)[static_cast<std::size_t>(i)]);
      // h^2 = 1e-10 times third derivatives, which are large behind norms of small rows, and 1e-16 |loss| / h.
      const std::vector<double> expected = differences(tiny, batch, p, sample);
      CHECK(relative_error(expected, std::vector<double>(expected.size())) >
            1e-3);  // there is something to compare
      CHECK(relative_error(found, expected) < 1e-6);
      for (std::int64_t i = p.shape.elements(); i < p.elements.count; ++i)
        REQUIRE(gradient[static_cast<std::size_t>(p.elements.first + i)] == 0);  // padding stays as it is
    }
  }
}

TEST_CASE("BERT forward_backward: gradients accumulate, and both parts of the token embedding's fit in one buffer")
{
  Laboratory lab;
  const ModelConfig config = tiny_bert_config(1, 2, 12, 9);
  const TinyBert tiny(lab, config, {DType::f64, 4, T, 0.1});
  const PairMicroBatch batch = tiny.placed(pairs_of(config, T, lengths), pair_weight);
  tiny.forward_backward(batch);
  std::vector<double> expected = tiny.whole_gradient();
  const Tensor together = lab.zeros(DType::f64, {tiny.table.elements()});
  for (const double times : {1, 2}) {
    forward_backward(tiny.model, tiny.table, tiny.parameters, together, {}, tiny.kept, tiny.work, batch);
    std::vector<double> multiple = expected;
    for (double& value : multiple) value *= times;
    CHECK(relative_error(together, multiple) < 1e-14);
  }
}

TEST_CASE("BERT forward_backward: what stands in the padding changes no bit, and neither does its length")
{
  Laboratory lab;
  const ModelConfig config = tiny_bert_config(2, 2, 12, 9);
  const std::vector<std::int64_t> shorter{5, 3, 4, 1};
  const TinyBert tiny(lab, config, {DType::f32, 4, T, 0});
  const auto run = [&](Token pad_token) {
    const BertLoss loss = tiny.forward_backward(tiny.placed(pairs_of(config, T, shorter, pad_token), pair_weight));
    return std::pair(loss, lab.copied(tiny.gradients));
  };
  const auto [loss, gradient] = run(0);
  const auto [other_loss, other_gradient] = run(7);
  CHECK(loss.tokens.nats.value() == other_loss.tokens.nats.value());
  CHECK(loss.pairs.nats.value() == other_loss.pairs.nats.value());
  CHECK(relative_error(gradient, other_gradient) == 0);  // compares as numbers: -0 is 0

  const TinyBert cut(lab, config, {DType::f32, 4, 5, 0});
  const BertLoss cut_loss = cut.forward_backward(cut.placed(pairs_of(config, 5, shorter), pair_weight));
  CHECK(cut_loss.tokens.nats.value() == loss.tokens.nats.value());
  CHECK(cut_loss.pairs.nats.value() == loss.pairs.nats.value());
  CHECK(relative_error(cut.gradients, gradient) == 0);
}

TEST_CASE("BERT forward: counts what is predicted, and starts near ln V + ln 2 with small parameters")
{
  Laboratory lab;
  ModelConfig config = tiny_bert_config(2, 2, 16, 9);
  config.vocabulary = 251;
  const TinyBert tiny(lab, config, {DType::f32, 4, T});
  initialize_parameters(host_stream(), tiny.parameters, tiny.table, config, 3);
  const PairBatch pairs = pairs_of(config, T, lengths);
  const PairMicroBatch batch = tiny.placed(pairs, 1);
  const BertLoss loss = tiny.forward_backward(batch);
  CHECK(loss.tokens.valid_tokens == std::ranges::count_if(pairs.targets, [](Token t) { return t >= 0; }));
  CHECK(loss.pairs.valid_tokens == 3);
  // Logits of deviation 0.02 sqrt(16) = 0.08, of which some 10 are averaged.
  CHECK(loss.mean() == Approx(std::log(251.0) + std::log(2.0)).margin(0.1));
  CHECK(loss.mean() == loss.tokens.mean() + loss.pairs.mean());
  const BertLoss wrong = tiny.model.head.errors(tiny.kept, batch);
  CHECK(wrong.tokens.mean() > 0.5);  // nothing has been learnt
  CHECK(wrong.pairs.mean() <= 1);
}

TEST_CASE("BERT forward: dropout applies in training only, and with other masks in another step")
{
  Laboratory lab;
  const ModelConfig config = tiny_bert_config(1, 2, 12, 9);
  const TinyBert with(lab, config, {DType::f32, 4, T, 0.3}), without(lab, config, {DType::f32, 4, T, 0});
  const auto loss = [&](const TinyBert& tiny, bool training, std::int64_t step) {
    PairMicroBatch batch = tiny.placed(pairs_of(config, T, lengths), 1);
    batch.training = training;
    batch.step = step;
    return tiny.forward_backward(batch).mean();
  };
  CHECK(loss(with, true, 0) != loss(without, true, 0));
  CHECK(loss(with, true, 0) != loss(with, true, 1));
  CHECK(loss(with, false, 0) == loss(without, true, 1));
}

TEST_CASE("BERT forward_backward: the cpu family is as near to the truth as the reference in the same type")
{
  const ModelConfig config = tiny_bert_config(2, 3, 24, 70);
  const std::vector<std::int64_t> long_and_short{67, 66, 31, 1};  // more than a block of 64 keys, and less
  const auto gradients = [&](Kernels kernels, DType type) {
    Laboratory lab(std::move(kernels));
    const TinyBert tiny(lab, config, {type, 4, 67, 0.1});
    assign(tiny.parameters, values_of(lab.converted(tiny.parameters, DType::f32)));
    const BertLoss loss = tiny.forward_backward(tiny.placed(pairs_of(config, 67, long_and_short), pair_weight));
    return std::pair(loss.mean(), tiny.whole_gradient());
  };
  const auto [loss, truth] = gradients(make_reference_kernels(), DType::f64);
  const std::vector<double> reference = gradients(make_reference_kernels(), DType::f32).second;
  const ParameterTable table(config);
  for (const int count : {1, 2, 3}) {
    INFO(count << " threads");
    const Threads threads(count);
    const auto [cpu_loss, cpu] = gradients(make_cpu_kernels(), DType::f32);
    CHECK(cpu_loss == Approx(loss).epsilon(1e-6));
    for (const Parameter& p : table.entries()) {
      INFO(p.name);
      // Both make roundings of 6e-8. The factor is for luck on either side; what is wrong is off by 1e-3 and more.
      CHECK(relative_error(elements_of(cpu, p), elements_of(truth, p)) <=
            5 * relative_error(elements_of(reference, p), elements_of(truth, p)) + 2e-6);
    }
  }
}

TEST_CASE("BERT place: a batch of another number of pairs is refused")
{
  Laboratory lab;
  const ModelConfig config = tiny_bert_config(1, 2, 12, 9);
  const TinyBert tiny(lab, config, {DType::f32, 4, T});
  CHECK_THROWS_AS(place(tiny.kept, lab.stream(), pairs_of(config, T, lengths), {0, 3}, 0), Error);
}
