#include <cmath>
#include <numbers>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

double plain_gelu(double x)
{
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

}  // namespace

TEST_CASE("bias_gelu_forward: leaves x + bias in x and its GELU in y")
{
  for (const auto& [R, n] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 20}, {7, 37}}) {
    Laboratory lab;
    const Tensor x = lab.filled(DType::f64, {R, n}, 1, 3), bias = lab.filled(DType::f64, {n}, 2);
    const Tensor y = lab.zeros(DType::f64, {R, n});
    std::vector<double> shifted = values_of(x), expected;
    for (std::size_t i = 0; i < shifted.size(); ++i) {
      shifted[i] += values_of(bias)[i % static_cast<std::size_t>(n)];
      expected.push_back(plain_gelu(shifted[i]));
    }
    lab.kernels()->bias_gelu_forward(y, x, bias);
    CHECK(relative_error(x, shifted) == 0);
    CHECK(relative_error(y, expected) < 1e-14);  // f64, the same formula
  }
}

TEST_CASE("bias_gelu_forward: has the figures of the exact GELU x P(X < x) within 1e-3, the error of the tanh form")
{
  Laboratory lab;
  const Tensor x = lab.zeros(DType::f64, {1, 5}), y = lab.zeros(DType::f64, {1, 5});
  assign(x, std::vector<double>{-2, -1, 0, 1, 2});
  lab.kernels()->bias_gelu_forward(y, x, lab.zeros(DType::f64, {5}));
  // x times the normal distribution function, whose values 0.0228, 0.1587, 0.5, 0.8413, 0.9772 every table has
  const std::vector<double> exact{-0.0455, -0.1587, 0, 0.8413, 1.9545};
  for (std::size_t i = 0; i < 5; ++i) CHECK(values_of(y)[i] == Approx(exact[i]).margin(1e-3));
}

TEST_CASE("gelu_backward: is the gradient that central differences give, also in place")
{
  for (const auto& [R, n] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 20}, {5, 37}}) {
    Laboratory lab;
    const Tensor x = lab.filled(DType::f64, {R, n}, 1, 3), bias = lab.filled(DType::f64, {n}, 2);
    const Tensor y = lab.zeros(DType::f64, {R, n}), dy = lab.filled(DType::f64, {R, n}, 3);
    const Tensor inner = lab.zeros(DType::f64, {R, n});
    const auto objective = [&] {
      lab.stream().copy(inner, x);
      lab.kernels()->bias_gelu_forward(y, inner, bias);
      return inner_product(dy, y);
    };
    const std::vector<double> expected = central_differences(x, objective);
    objective();
    const Tensor dx = lab.filled(DType::f64, {R, n}, 4);
    lab.kernels()->gelu_backward(dx, dy, inner);
    CHECK(relative_error(dx, expected) < difference_tolerance);
    lab.kernels()->gelu_backward(dy, dy, inner);
    CHECK(different_bits(dy, dx) == 0);

    // the bias is added to x, so its gradient is the sum over rows
    const Tensor dbias = lab.zeros(DType::f64, {n});
    lab.kernels()->bias_backward(dbias, dx, SumOrder::batch(R, 1));
    lab.stream().copy(dy, lab.filled(DType::f64, {R, n}, 3));
    CHECK(relative_error(dbias, central_differences(bias, objective)) < difference_tolerance);
  }
}

TEST_CASE("gelu: bf16 gives f32's results, rounded")
{
  Laboratory lab;
  constexpr std::int64_t R = 9, n = 37;
  const Tensor x = lab.filled(DType::bf16, {R, n}, 1, 3), bias = lab.filled(DType::bf16, {n}, 2);
  const Tensor dy = lab.filled(DType::bf16, {R, n}, 3);
  const Tensor y = lab.zeros(DType::bf16, {R, n}), dx = lab.zeros(DType::bf16, {R, n});
  const Tensor wide_x = lab.converted(x, DType::f32), wide_y = lab.zeros(DType::f32, {R, n});
  const Tensor wide_dx = lab.zeros(DType::f32, {R, n});
  lab.kernels()->bias_gelu_forward(y, x, bias);
  lab.kernels()->bias_gelu_forward(wide_y, wide_x, lab.converted(bias, DType::f32));
  lab.kernels()->gelu_backward(dx, dy, x);
  lab.kernels()->gelu_backward(wide_dx, lab.converted(dy, DType::f32), wide_x);
  CHECK(relative_error(x, wide_x) < bf16_rounding);
  // x + bias is rounded, then the result; GELU makes the first error at most 1.13 times as large.
  CHECK(relative_error(y, wide_y) < 2.2 * bf16_rounding);
  // Two roundings again; the derivative changes by at most 1.2 x where x changes by a part of itself.
  CHECK(relative_error(dx, wide_dx) < 2.2 * bf16_rounding);
}

TEST_CASE("tanh: y is that of a plain loop and dx is what central differences give, both also in place")
{
  Laboratory lab;
  constexpr std::int64_t n = 37;
  const Tensor x = lab.filled(DType::f64, {n}, 1, 3), dy = lab.filled(DType::f64, {n}, 2);
  const Tensor y = lab.zeros(DType::f64, {n}), dx = lab.filled(DType::f64, {n}, 3);
  std::vector<double> expected;
  for (const double value : values_of(x))
    expected.push_back((std::exp(value) - std::exp(-value)) / (std::exp(value) + std::exp(-value)));
  const std::vector<double> gradient = central_differences(x, [&] {
    lab.kernels()->tanh_forward(y, x);
    return inner_product(dy, y);
  });
  lab.kernels()->tanh_forward(y, x);
  CHECK(relative_error(y, expected) < 1e-14);  // f64, another formula
  lab.kernels()->tanh_backward(dx, dy, y);
  CHECK(relative_error(dx, gradient) < difference_tolerance);
  lab.kernels()->tanh_backward(dy, dy, y);
  CHECK(different_bits(dy, dx) == 0);
  lab.kernels()->tanh_forward(x, x);
  CHECK(different_bits(x, y) == 0);
}

TEST_CASE("tanh: bf16 gives f32's results, rounded")
{
  Laboratory lab;
  constexpr std::int64_t n = 37;
  const Tensor x = lab.filled(DType::bf16, {n}, 1, 3), dy = lab.filled(DType::bf16, {n}, 2);
  const Tensor y = lab.zeros(DType::bf16, {n}), dx = lab.zeros(DType::bf16, {n});
  const Tensor wide_y = lab.zeros(DType::f32, {n}), wide_dx = lab.zeros(DType::f32, {n});
  lab.kernels()->tanh_forward(y, x);
  lab.kernels()->tanh_forward(wide_y, lab.converted(x, DType::f32));
  lab.kernels()->tanh_backward(dx, dy, y);
  lab.kernels()->tanh_backward(wide_dx, lab.converted(dy, DType::f32), lab.converted(y, DType::f32));
  CHECK(different_bits(y, lab.converted(wide_y, DType::bf16)) == 0);
  CHECK(different_bits(dx, lab.converted(wide_dx, DType::bf16)) == 0);
}
