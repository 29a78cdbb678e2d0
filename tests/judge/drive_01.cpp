// The exercises of lesson 01: kernels of the reference family.

#include "tests/judge/driver.hpp"

namespace rankwise::judge {

using testing::Laboratory;

namespace {

/// 01.1: the backward pass of the norm, on a row of weights and B T rows of C channels.
const Exercise norm_backward("01.1", [](const Json& in) -> Json {
  Laboratory lab;
  const DType type = type_of(in["type"]), sums = accumulator_of(type);
  const std::int64_t B = in["B"], T = in["T"], C = in["C"], seed = in["seed"];
  const Tensor x = random_tensor(lab, type, {B * T, C}, seed), dy = random_tensor(lab, type, {B * T, C}, seed + 1);
  const Tensor weight = random_tensor(lab, type, {C}, seed + 2), bias = random_tensor(lab, type, {C}, seed + 3);
  const Tensor y = lab.zeros(type, x.shape()), mean = lab.zeros(sums, {B * T}), rstd = lab.zeros(sums, {B * T});
  const Tensor dx = random_tensor(lab, type, x.shape(), seed + 4);
  const Tensor dweight = random_tensor(lab, sums, {C}, seed + 5), dbias = random_tensor(lab, sums, {C}, seed + 6);
  lab.kernels()->norm_forward(y, mean, rstd, x, weight, bias, 1e-5);
  lab.kernels()->norm_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, SumOrder::batch(B, T));
  return {{"dx", numbers(dx)}, {"dweight", numbers(dweight)}, {"dbias", numbers(dbias)}};
});

/// 01.2: the backward pass of attention, of which the student writes that of the softmax.
const Exercise attention_backward("01.2", [](const Json& in) -> Json {
  Laboratory lab;
  const DType type = type_of(in["type"]);
  const std::int64_t B = in["B"], T = in["T"], H = in["H"], D = in["D"], seed = in["seed"];
  const AttentionShape shape{.B = B, .T = T, .heads = {0, H}, .D = D};
  const Dropout dropout{in["dropout"], 5, 2, 3, Purpose::attention_dropout, {{0, B}, {0, T}}};
  const Tensor qkv = random_tensor(lab, type, {B * T, 3 * H * D}, seed),
               dy = random_tensor(lab, type, {B * T, H * D}, seed + 1);
  const Tensor y = lab.zeros(type, dy.shape()), sums = lab.zeros(accumulator_of(type), {B, H, T});
  const Tensor dqkv = random_tensor(lab, type, qkv.shape(), seed + 2);
  lab.kernels()->attention_forward(y, sums, qkv, shape, dropout);
  lab.kernels()->attention_backward(dqkv, dy, y, sums, qkv, shape, dropout);
  return {{"dqkv", numbers(dqkv)}};
});

/// 01.3: several AdamW updates, with a gradient of another size in each.
const Exercise adamw("01.3", [](const Json& in) -> Json {
  Laboratory lab;
  const DType gradients = type_of(in["gradients"]);
  const std::int64_t n = in["n"], seed = in["seed"], steps = in["steps"];
  const Tensor p = random_tensor(lab, DType::f32, {n}, seed);
  const Tensor m = lab.zeros(DType::f32, {n}), v = lab.zeros(DType::f32, {n});
  Json weights = Json::array();
  for (std::int64_t number = 1; number <= steps; ++number) {
    const Tensor gradient = random_tensor(lab, gradients, {n}, seed + number);
    AdamWStep step;
    step.number = number;
    step.learning_rate = in["learning_rate"];
    step.gradient_scale = in["scale"];
    step.weight_decay = in["decay"];
    step.epsilon = in["epsilon"];
    lab.kernels()->adamw(p, m, v, gradient, step);
    weights.push_back(numbers(p));
  }
  return {{"weights after each step", weights}, {"first moments", numbers(m)}, {"second moments", numbers(v)}};
});

}  // namespace

}  // namespace rankwise::judge
