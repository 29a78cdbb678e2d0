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
  lab.kernels().norm_forward(y, mean, rstd, x, weight, bias, 1e-5);
  lab.kernels().norm_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, SumOrder::batch(B, T));
  return {{"dx", numbers(dx)}, {"dweight", numbers(dweight)}, {"dbias", numbers(dbias)}, {"y", numbers(y)}};
});

}  // namespace

}  // namespace rankwise::judge
