#include <cmath>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// R rows of C channels, whose element i is x(i).
struct Case {
  std::int64_t R, C;
  Values x;
  double epsilon = norm_epsilon;
};

Computation forward(const Case& c)
{
  return [c](Data& data, const Kernels& kernels) {
    const Tensor y = data.output({c.R, c.C}), mean = data.output({c.R}, Role::sum);
    const Tensor rstd = data.output({c.R}, Role::sum);
    kernels->norm_forward(y, mean, rstd, data.input({c.R, c.C}, c.x), data.input({c.C}, numbers(2, 0.5, 1)),
                          data.input({c.C}, numbers(3)), c.epsilon);
    return std::vector<Output>{{"y", y, c.C}, {"mean", mean, 1}, {"rstd", rstd, 1}};
  };
}

/// The backward pass from the mean and rstd that the truth has.
Computation backward(const Case& c)
{
  return [c, truth = Truth(forward(c))](Data& data, const Kernels& kernels) mutable {
    const Tensor dx = data.updated({c.R, c.C}, numbers(5));
    const Tensor dweight = data.updated({c.C}, numbers(6), Role::gradient);
    const Tensor dbias = data.updated({c.C}, numbers(7), Role::gradient);
    kernels->norm_backward(dx, dweight, dbias, data.input({c.R, c.C}, numbers(4, 1, 0.2)),
                           data.input({c.R, c.C}, c.x), data.input({c.R}, truth(data, 1), Role::sum),
                           data.input({c.R}, truth(data, 2), Role::sum), data.input({c.C}, numbers(2, 0.5, 1)),
                           SumOrder::batch(1, c.R));
    return std::vector<Output>{{"dx", dx, c.C}, {"dweight", dweight, 1}, {"dbias", dbias, 1}};
  };
}

void check_both(const Case& c, Tolerance tolerance = {})
{
  INFO(c.R << " rows of " << c.C);
  check_against_reference(forward(c), tolerance);
  check_against_reference(backward(c), tolerance);
}

}  // namespace

TEST_CASE("every norm: is the reference's for rows of all lengths; gradients are added")
{
  for (const std::int64_t C : {2, 7, 8, 17, 40, 768})
    for (const std::int64_t R : {1, 2, 5, 67}) check_both({R, C, numbers(1, 1, 0.3)});
  check_both({7, 1234, numbers(1, 1, 0.3)});  // more than a warp of a GPU keeps in registers
}

TEST_CASE("every norm: rows of very different size and mean do not touch each other")
{
  constexpr std::int64_t C = 40;
  check_both({9, C, [](std::int64_t i) {
                const double size = std::pow(10.0, static_cast<double>(i / C % 5) - 3);
                return size * (number(i, 1) + static_cast<double>(i / C % 3));
              }});
}

TEST_CASE("every norm: a mean that is a thousand deviations does not drown the variance")
{
  // A sum of squares less the square of the mean would leave nothing: 1e6 in f32 is a multiple of 0.06. The roundings that
  // are left are those of the mean, 1e3 times 6e-8, over a deviation of 0.6. As bf16 the numbers would all be 1000.
  for (const std::int64_t C : {8, 40, 768}) {
    const Case c{5, C, numbers(1, 1, 1000)};
    for (const Computation& compute : {forward(c), backward(c)}) check_in(all_f32, compute, {5, 1e3 * 6e-8 / 0.6});
  }
}

TEST_CASE("every norm: a row of equal numbers becomes the bias")
{
  // Its variance is zero and rstd is 316, times the rounding of the mean, 2 in the last place, and the weight of 1.5.
  for (const std::int64_t C : {1, 8, 40, 768})
    for (const double value : {0.0, 0.75, -1.1}) {
      INFO("value " << value);
      check_both({3, C, [=](std::int64_t) { return value; }}, {5, 2 * 0x1p-23 * 316 * 1.5});
    }
}

TEST_CASE("every norm: is the reference's for the epsilon of BERT and for a large one")
{
  // The rows are as small as the root of epsilon, so that it counts as much as the variance.
  for (const double epsilon : {1e-12, 1e-2})
    for (const std::int64_t C : {8, 40, 768}) check_both({5, C, numbers(1, std::sqrt(epsilon)), epsilon});
}
