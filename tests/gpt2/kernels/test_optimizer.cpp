#include <algorithm>
#include <limits>
#include <vector>

#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

// The update itself, adamw(), has a file of its own.

TEST_CASE("add: adds element by element, in f32, f64 and bf16")
{
  for (const DType type : {DType::f32, DType::f64, DType::bf16}) {
    Laboratory lab;
    const Tensor into = lab.filled(type, {3, 37}, 1), from = lab.filled(type, {3, 37}, 2);
    std::vector<double> sum = values_of(into);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values_of(from)[i];
    const Tensor expected = lab.zeros(type, {3, 37});
    assign(expected, sum);  // the f64 sum of two f32 or bf16 numbers of this size is exact, so it is rounded once
    lab.kernels()->add(into, from);
    CHECK(different_bits(into, expected) == 0);
  }
  Laboratory lab;
  CHECK_THROWS_AS(lab.kernels()->add(lab.zeros(DType::f32, {4}), lab.zeros(DType::f32, {5})), Error);
}

TEST_CASE("maximum: takes the larger of each two elements, in f32, f64 and bf16")
{
  for (const DType type : {DType::f32, DType::f64, DType::bf16}) {
    Laboratory lab;
    const Tensor into = lab.filled(type, {3, 37}, 1), from = lab.filled(type, {3, 37}, 2);
    std::vector<double> larger = values_of(into), other = values_of(from);
    larger[5] = -std::numeric_limits<double>::infinity();  // of a part that has nothing but padding
    assign(into, larger);
    for (std::size_t i = 0; i < larger.size(); ++i) larger[i] = std::max(larger[i], other[i]);
    const Tensor expected = lab.zeros(type, {3, 37}), unchanged = lab.copied(from);
    assign(expected, larger);
    lab.kernels()->maximum(into, from);
    CHECK(different_bits(into, expected) == 0);
    CHECK(different_bits(from, unchanged) == 0);
    CHECK(different_bits(into, from) > 0);
  }
  Laboratory lab;
  CHECK_THROWS_AS(lab.kernels()->maximum(lab.zeros(DType::f32, {4}), lab.zeros(DType::f32, {5})), Error);
}

TEST_CASE("squared_norm: is the sum of squares, whatever pieces it is added from")
{
  for (const DType type : {DType::f32, DType::f64, DType::bf16}) {
    Laboratory lab;
    const Tensor x = lab.filled(type, {1000}, 1, 30);
    double expected = 0;
    for (const double value : values_of(x)) expected += value * value;
    const double norm = lab.kernels()->squared_norm(x).value();
    CHECK(norm == Approx(expected).epsilon(1e-13));  // a thousand roundings of f64 in the plain sum

    ExactScalar pieces;
    for (const Range piece : {Range{700, 300}, Range{0, 1}, Range{1, 699}})
      pieces += lab.kernels()->squared_norm(x.slice(piece));
    CHECK(pieces.value() == norm);
  }
}

TEST_CASE("first_not_finite: names the first NaN or infinity")
{
  for (const DType type : {DType::f32, DType::f64, DType::bf16}) {
    Laboratory lab;
    const Tensor x = lab.filled(type, {50}, 1);
    CHECK_FALSE(lab.kernels()->first_not_finite(x));
    std::vector<double> values = values_of(x);
    values[40] = std::numeric_limits<double>::quiet_NaN();
    assign(x, values);
    CHECK(lab.kernels()->first_not_finite(x).value() == 40);
    values[13] = -std::numeric_limits<double>::infinity();
    assign(x, values);
    CHECK(lab.kernels()->first_not_finite(x).value() == 13);
  }
}
