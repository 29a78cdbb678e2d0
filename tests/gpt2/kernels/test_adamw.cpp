#include <cmath>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Weights, moments and gradient of n parameters.
struct State {
  State(Laboratory& lab, std::int64_t n)
      : weight(lab.filled(DType::f32, {n}, 1)),
        first(lab.zeros(DType::f32, {n})),
        second(lab.zeros(DType::f32, {n})),
        gradient(lab.zeros(DType::f32, {n}))
  {
  }
  Tensor weight, first, second, gradient;
};

/// The gradient of step @p number: every element has a size of its own, from 0.02 to 2, and changes from step to step.
void set_gradient(const Tensor& gradient, std::int64_t step)
{
  std::vector<double> values(static_cast<std::size_t>(gradient.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto series = static_cast<std::uint32_t>(100 + step);
    values[i] = number(static_cast<std::int64_t>(i), series) * std::pow(10, -2.0 * static_cast<double>(i % 3) / 2);
  }
  assign(gradient, values);
}

/// Algorithm 2 of Loshchilov and Hutter, in f64.
struct PlainAdamW {
  explicit PlainAdamW(const State& s) : weight(values_of(s.weight)), m(weight.size()), v(weight.size()) {}
  void update(const std::vector<double>& gradient, const AdamWStep& step)
  {
    const auto number = static_cast<double>(step.number);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const double g = step.gradient_scale * gradient[i];
      m[i] = step.beta1 * m[i] + (1 - step.beta1) * g;
      v[i] = step.beta2 * v[i] + (1 - step.beta2) * g * g;
      const double mhat = m[i] / (1 - std::pow(step.beta1, number)),
                   vhat = v[i] / (1 - std::pow(step.beta2, number));
      const double decay = step.learning_rate * step.weight_decay * weight[i];
      weight[i] -= step.learning_rate * mhat / (std::sqrt(vhat) + step.epsilon) + decay;
    }
  }
  std::vector<double> weight, m, v;
};

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b)
{
  std::vector<double> result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] - b[i]);
  return result;
}

}  // namespace

TEST_CASE("adamw: weights and moments are those of a plain loop after each of 12 steps")
{
  // An epsilon as large as the gradients, so that its place in the formula shows; decay as strong as the gradients.
  for (const std::int64_t n : {1, 37, 4099}) {
    Laboratory lab;
    const State state(lab, n);
    const std::vector<double> start = values_of(state.weight);
    PlainAdamW plain(state);
    for (std::int64_t number = 1; number <= 12; ++number) {
      const AdamWStep step{.learning_rate = 0.05 / static_cast<double>(number),
                           .beta1 = 0.9,
                           .beta2 = 0.97,
                           .epsilon = 0.03,
                           .weight_decay = 0.4,
                           .gradient_scale = number % 2 == 0 ? 0.25 : 1.5,
                           .number = number};
      set_gradient(state.gradient, number);
      const std::vector<double> gradient = values_of(state.gradient);
      lab.kernels()->adamw(state.weight, state.first, state.second, state.gradient, step);
      plain.update(gradient, step);
      INFO("n " << n << ", step " << number);
      // Way, not place: how far the weights have come. Each step rounds the weight, about 1, by 6e-8, and the way is
      // some 0.05 long; 1 - 0.97 in f32 is off by 1e-6. A wrong formula is off by percents.
      const std::vector<double> way = difference(plain.weight, start);
      CHECK(relative_error(difference(values_of(state.weight), start), way) < 1e-5);
      CHECK(relative_error(state.first, plain.m) < 1e-5);
      CHECK(relative_error(state.second, plain.v) < 1e-5);
      CHECK(relative_error(state.gradient, gradient) == 0);  // it is left as it was
    }
  }
}

TEST_CASE("adamw: under a constant gradient every step moves by learning_rate g / (|g| + epsilon)")
{
  // mhat = g and vhat = g^2 at every step, because the bias is divided out
  Laboratory lab;
  const State state(lab, 8);
  set_gradient(state.gradient, 1);
  const std::vector<double> gradient = values_of(state.gradient);
  const AdamWStep step{.learning_rate = 0.125, .epsilon = 0.1};
  std::vector<double> expected = values_of(state.weight);
  for (std::int64_t number = 1; number <= 20; ++number) {
    AdamWStep now = step;
    now.number = number;
    lab.kernels()->adamw(state.weight, state.first, state.second, state.gradient, now);
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] -= step.learning_rate * gradient[i] / (std::abs(gradient[i]) + step.epsilon);
    CHECK(relative_error(state.weight, expected) < 1e-5);  // f32 moments; see above
  }
}

TEST_CASE("adamw: without a gradient only decay is left, and it is no part of the moments")
{
  Laboratory lab;
  const State state(lab, 8);
  const std::vector<double> start = values_of(state.weight);
  for (std::int64_t number = 1; number <= 10; ++number)
    lab.kernels()->adamw(state.weight, state.first, state.second, state.gradient,
                         {.learning_rate = 0.1, .weight_decay = 0.5, .number = number});
  std::vector<double> expected;
  for (const double weight : start) expected.push_back(weight * std::pow(1 - 0.1 * 0.5, 10));
  CHECK(relative_error(state.weight, expected) < 1e-6);  // ten roundings of 6e-8
  CHECK(lab.kernels()->squared_norm(state.first).value() == 0);
  CHECK(lab.kernels()->squared_norm(state.second).value() == 0);
}

TEST_CASE("adamw: the number of the update decides how much bias there is")
{
  // m = v = 0 before update 1000: (1 - b1) g and (1 - b2) g^2 with hardly any correction
  Laboratory lab;
  const State state(lab, 8);
  set_gradient(state.gradient, 1);
  const std::vector<double> gradient = values_of(state.gradient);
  std::vector<double> expected = values_of(state.weight);
  lab.kernels()->adamw(state.weight, state.first, state.second, state.gradient,
                       {.learning_rate = 0.1, .epsilon = 0.01, .number = 1000});
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] -= 0.1 * 0.1 * gradient[i] / (std::sqrt(0.05) * std::abs(gradient[i]) + 0.01);
  CHECK(relative_error(state.weight, expected) < 1e-6);
}
