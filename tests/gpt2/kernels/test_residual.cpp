#include <cmath>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

struct Size {
  std::int64_t B, T, C;
};
constexpr Size sizes[] = {{1, 1, 5}, {2, 8, 16}, {3, 5, 22}};

Dropout dropout_of(double rate, Size s)
{
  return {rate, 5, 3, 4, Purpose::residual_dropout, {{6, s.B}, {0, s.T}}};
}

/// The factors of all elements of (R, C), spelled out from the definition of the mask.
std::vector<double> plain_mask(const Dropout& d, std::int64_t C)
{
  std::vector<double> mask;
  for (std::int64_t b = d.rows.sequences.first; b < d.rows.sequences.end(); ++b)
    for (std::int64_t t = d.rows.tokens.first; t < d.rows.tokens.end(); ++t)
      for (std::int64_t c = 0; c < C; ++c) {
        const PhiloxWords words = random_words(d.seed, d.purpose, {d.step, b, t, d.layer, 0, c});
        const bool dropped = uniform(words[static_cast<std::size_t>(c % 4)]) < d.rate;
        mask.push_back(dropped ? 0 : 1 / (1 - d.rate));
      }
  return mask;
}

/// The mask as the kernel draws it: its result for an input of ones.
std::vector<double> drawn_mask(Laboratory& lab, const Dropout& dropout, std::int64_t C)
{
  const Tensor ones = lab.filled(DType::f64, {dropout.rows.count(), C}, 1, 0, 1);
  lab.kernels()->dropout(ones, ones, dropout);
  return values_of(ones);
}

}  // namespace

TEST_CASE("residual_forward: out is x + mask (y + bias)")
{
  for (const double rate : {0.0, 0.3})
    for (const Size s : sizes) {
      Laboratory lab;
      const Shape shape{s.B * s.T, s.C};
      const Dropout dropout = dropout_of(rate, s);
      const Tensor x = lab.filled(DType::f64, shape, 1), y = lab.filled(DType::f64, shape, 2);
      const Tensor bias = lab.filled(DType::f64, {s.C}, 3), out = lab.filled(DType::f64, shape, 4);
      lab.kernels()->residual_forward(out, x, y, bias, dropout);
      const std::vector<double> mask = plain_mask(dropout, s.C), shift = values_of(bias), branch = values_of(y);
      std::vector<double> expected = values_of(x);
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] += mask[i] * (branch[i] + shift[i % shift.size()]);
      CHECK(relative_error(out, expected) < 1e-15);
    }
}

TEST_CASE("dropout, bias_backward: are the gradients that central differences give, also in place")
{
  for (const double rate : {0.0, 0.3})
    for (const Size s : sizes) {
      Laboratory lab;
      const Shape shape{s.B * s.T, s.C};
      const Dropout dropout = dropout_of(rate, s);
      const Tensor x = lab.filled(DType::f64, shape, 1), y = lab.filled(DType::f64, shape, 2);
      const Tensor bias = lab.filled(DType::f64, {s.C}, 3), out = lab.zeros(DType::f64, shape);
      const Tensor dx = lab.filled(DType::f64, shape, 4), dy = lab.filled(DType::f64, shape, 5);
      const Tensor dbias = lab.zeros(DType::f64, {s.C});
      const auto objective = [&] {
        lab.kernels()->residual_forward(out, x, y, bias, dropout);
        return inner_product(dx, out);
      };
      const std::vector<double> expected = central_differences(y, objective);
      const std::vector<double> expected_bias = central_differences(bias, objective);
      lab.kernels()->dropout(dy, dx, dropout);
      lab.kernels()->bias_backward(dbias, dy, SumOrder::batch(s.B, s.T));
      CHECK(relative_error(dy, expected) < difference_tolerance);
      CHECK(relative_error(dbias, expected_bias) < difference_tolerance);
      lab.kernels()->dropout(dx, dx, dropout);
      CHECK(different_bits(dx, dy) == 0);
    }
}

TEST_CASE("dropout: drops the share of its rate, and keeps the mean")
{
  Laboratory lab;
  constexpr Size s{4, 64, 64};
  constexpr double n = 4 * 64 * 64;
  for (const double rate : {0.1, 0.5, 0.9}) {
    const std::vector<double> mask = drawn_mask(lab, dropout_of(rate, s), s.C);
    const auto dropped = static_cast<double>(std::count(mask.begin(), mask.end(), 0.0));
    CHECK(std::abs(dropped - rate * n) < 4 * std::sqrt(n * rate * (1 - rate)));  // four standard deviations
    CHECK(std::count(mask.begin(), mask.end(), 1 / (1 - rate)) == static_cast<std::int64_t>(n - dropped));
  }
}

TEST_CASE("dropout: a mask depends on its key and position, not on which rows are drawn together")
{
  Laboratory lab;
  constexpr Size s{4, 8, 20};
  const Dropout dropout = dropout_of(0.5, s);
  const std::vector<double> whole = drawn_mask(lab, dropout, s.C);

  Dropout part = dropout;
  part.rows = {{dropout.rows.sequences.first + 2, 1}, {0, s.T}};
  const auto third = whole.begin() + 2 * s.T * s.C;
  CHECK(drawn_mask(lab, part, s.C) == std::vector<double>(third, third + s.T * s.C));
  part.rows.tokens = {3, 5};
  CHECK(drawn_mask(lab, part, s.C) == std::vector<double>(third + 3 * s.C, third + 8 * s.C));

  const auto other = [&](const std::function<void(Dropout&)>& change) {
    Dropout changed = dropout;
    change(changed);
    return drawn_mask(lab, changed, s.C);
  };
  CHECK(other([](Dropout&) {}) == whole);
  CHECK(other([](Dropout& d) { ++d.seed; }) != whole);
  CHECK(other([](Dropout& d) { ++d.step; }) != whole);
  CHECK(other([](Dropout& d) { ++d.layer; }) != whole);
  CHECK(other([](Dropout& d) { ++d.rows.sequences.first; }) != whole);
  CHECK(other([](Dropout& d) { d.purpose = Purpose::embedding_dropout; }) != whole);
}

TEST_CASE("residual: bf16 gives f32's results, rounded")
{
  Laboratory lab;
  constexpr Size s{3, 5, 22};
  const Shape shape{s.B * s.T, s.C};
  const Dropout dropout = dropout_of(0.25, s);
  const Tensor x = lab.filled(DType::bf16, shape, 1), y = lab.filled(DType::bf16, shape, 2);
  const Tensor bias = lab.filled(DType::bf16, {s.C}, 3), out = lab.zeros(DType::bf16, shape);
  const Tensor wide_out = lab.zeros(DType::f32, shape), wide_x = lab.converted(x, DType::f32);
  lab.kernels()->residual_forward(out, x, y, bias, dropout);
  lab.kernels()->residual_forward(wide_out, wide_x, lab.converted(y, DType::f32), lab.converted(bias, DType::f32),
                                  dropout);
  CHECK(different_bits(out, lab.converted(wide_out, DType::bf16)) == 0);  // computed in f32, rounded once
  lab.kernels()->dropout(out, x, dropout);
  lab.kernels()->dropout(wide_out, wide_x, dropout);
  CHECK(different_bits(out, lab.converted(wide_out, DType::bf16)) == 0);
}
