#include <cmath>
#include <functional>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

struct Size {
  std::int64_t B, T, C;
};

// One token; a T that 8 does not divide; a B that is no power of two; a C that is no multiple of a vector register.
constexpr Size sizes[] = {{1, 1, 5}, {2, 8, 16}, {3, 5, 20}, {5, 13, 37}};

/// One norm layer with its data: rows of mean 0.3 and deviation 0.6, so that neither is negligible.
struct Norm {
  Norm(Laboratory& laboratory, DType type, Size size)
      : lab(laboratory),
        order(SumOrder::batch(size.B, size.T)),
        x(lab.filled(type, {size.B * size.T, size.C}, 1, 1, 0.3)),
        weight(lab.filled(type, {size.C}, 2, 0.5, 1)),
        bias(lab.filled(type, {size.C}, 3)),
        dy(lab.filled(type, x.shape(), 4, 1, 0.2)),
        y(lab.zeros(type, x.shape())),
        mean(lab.zeros(accumulator_of(type), {x.extent(0)})),
        rstd(lab.zeros(accumulator_of(type), {x.extent(0)})),
        dx(lab.filled(type, x.shape(), 5)),
        dweight(lab.filled(accumulator_of(type), {size.C}, 6)),
        dbias(lab.filled(accumulator_of(type), {size.C}, 7))
  {
  }
  void forward(double epsilon = norm_epsilon) const
  {
    lab.kernels()->norm_forward(y, mean, rstd, x, weight, bias, epsilon);
  }
  void backward() const { lab.kernels()->norm_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, order); }

  Laboratory& lab;
  SumOrder order;
  Tensor x, weight, bias, dy;  // what goes in
  Tensor y, mean, rstd;        // what forward() gives
  Tensor dx, dweight, dbias;   // what backward() adds to: not zero at first
};

/// A gradient before the call, plus the one from central differences of <dy, y>.
std::vector<double> expected(const Norm& norm, const Tensor& parameter, const Tensor& gradient_before)
{
  const auto objective = [&] {
    norm.forward();
    return inner_product(norm.dy, norm.y);
  };
  std::vector<double> sum = values_of(gradient_before);
  const std::vector<double> gradient = central_differences(parameter, objective);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  return sum;
}

}  // namespace

TEST_CASE("norm_forward: y, mean and rstd are those of a plain loop")
{
  const auto check_with = [](Size size, double epsilon, const std::function<void(const Norm&)>& forward) {
    INFO("epsilon " << epsilon);
    Laboratory lab;
    const Norm norm(lab, DType::f64, size);
    for (double& value : norm.x.slice({0, size.C}).span<double>())
      value *= std::sqrt(epsilon);  // epsilon counts in the first row
    forward(norm);
    const std::vector<double> x = values_of(norm.x), w = values_of(norm.weight), b = values_of(norm.bias);
    std::vector<double> y, means, rstds;
    for (std::size_t r = 0; r < x.size(); r += w.size()) {
      double mean = 0, square = 0;
      for (std::size_t c = 0; c < w.size(); ++c) mean += x[r + c] / static_cast<double>(size.C);
      for (std::size_t c = 0; c < w.size(); ++c) square += x[r + c] * x[r + c] / static_cast<double>(size.C);
      means.push_back(mean);
      rstds.push_back(1 / std::sqrt(square - mean * mean + epsilon));
      for (std::size_t c = 0; c < w.size(); ++c) y.push_back((x[r + c] - mean) * rstds.back() * w[c] + b[c]);
    }
    // f64 all the way; the variance by another formula loses a few digits of 16.
    CHECK(relative_error(norm.y, y) < 1e-12);
    CHECK(relative_error(norm.mean, means) < 1e-12);
    CHECK(relative_error(norm.rstd, rstds) < 1e-12);
  };
  for (const Size size : sizes) {
    check_with(size, 1e-5, [](const Norm& norm) { norm.forward(); });
    for (const double epsilon : {1e-12, 1e-3})
      check_with(size, epsilon, [&](const Norm& norm) { norm.forward(epsilon); });
  }
}

TEST_CASE("norm_forward: a row of equal numbers becomes the bias")
{
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    Laboratory lab(family.make());
    const Norm norm(lab, DType::f32, {1, 1, 24});
    for (float& value : norm.x.span<float>()) value = 0.75f;  // its sums are exact
    norm.forward();
    CHECK(different_bits(norm.y, norm.bias.reshaped({1, 24})) == 0);
  }
}

TEST_CASE("norm_backward: adds the gradient that central differences give")
{
  for (const Size size : sizes) {
    INFO("B " << size.B << ", T " << size.T << ", C " << size.C);
    Laboratory lab;
    const Norm norm(lab, DType::f64, size);
    const std::vector<double> dx = expected(norm, norm.x, norm.dx);
    const std::vector<double> dweight = expected(norm, norm.weight, norm.dweight);
    const std::vector<double> dbias = expected(norm, norm.bias, norm.dbias);
    norm.forward();
    norm.backward();
    CHECK(relative_error(norm.dx, dx) < difference_tolerance);
    CHECK(relative_error(norm.dweight, dweight) < difference_tolerance);
    CHECK(relative_error(norm.dbias, dbias) < difference_tolerance);
  }
}

TEST_CASE(
    "norm_backward: sums over the batch are trees of sequences and sixteenths, so halves of a batch add up to it")
{
  constexpr std::int64_t B = 4, T = 16, C = 24;
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    Laboratory lab(family.make());
    const Norm whole(lab, DType::f32, {B, T, C});
    whole.forward();
    lab.stream().zero(whole.dweight);
    lab.stream().zero(whole.dbias);
    whole.backward();

    std::vector<Tensor> dweights, dbiases;
    for (std::int64_t half = 0; half < 2; ++half) {
      const Range rows{half * B / 2 * T, B / 2 * T}, elements{rows.first * C, rows.count * C};
      const Shape shape{rows.count, C};
      dweights.push_back(lab.zeros(DType::f32, {C}));
      dbiases.push_back(lab.zeros(DType::f32, {C}));
      lab.kernels()->norm_backward(lab.zeros(DType::f32, shape), dweights.back(), dbiases.back(),
                                   whole.dy.slice(elements).reshaped(shape),
                                   whole.x.slice(elements).reshaped(shape), whole.mean.slice(rows),
                                   whole.rstd.slice(rows), whole.weight, SumOrder::batch(B / 2, T));
    }
    lab.kernels()->add(dweights[0], dweights[1]);
    lab.kernels()->add(dbiases[0], dbiases[1]);
    CHECK(different_bits(dweights[0], whole.dweight) == 0);
    CHECK(different_bits(dbiases[0], whole.dbias) == 0);
  }
}

TEST_CASE("norm: bf16 gives f32's results, rounded")
{
  Laboratory lab;
  const Norm stored(lab, DType::bf16, {3, 5, 20});
  Norm exact(lab, DType::f32, {3, 5, 20});
  exact.x = lab.converted(stored.x, DType::f32);
  exact.weight = lab.converted(stored.weight, DType::f32);
  exact.bias = lab.converted(stored.bias, DType::f32);
  exact.dy = lab.converted(stored.dy, DType::f32);
  exact.dx = lab.converted(stored.dx, DType::f32);
  for (const Norm* norm : {&stored, static_cast<const Norm*>(&exact)}) {
    norm->forward();
    norm->backward();
  }
  CHECK(relative_error(stored.y, exact.y) < bf16_rounding);    // computed in f32, rounded once
  CHECK(relative_error(stored.dx, exact.dx) < bf16_rounding);  // the same
  CHECK(relative_error(stored.dweight, exact.dweight) == 0);   // f32 sums of the same inputs
  CHECK(relative_error(stored.dbias, exact.dbias) == 0);
}
