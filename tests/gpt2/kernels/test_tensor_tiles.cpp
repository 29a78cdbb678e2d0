#include <cmath>
#include <limits>
#include <vector>

#include "common/cuda/cuda.hpp"
#include "tests/catch.hpp"
#include "tests/common/cuda/gpu.hpp"
#include "tests/gpt2/kernels/tensor_tile_products.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr int n = factor_side;

/// Whole numbers from -8 to 8, without a pattern: their products and the sums of these are exact in f32.
std::vector<bf16> whole_numbers(int seed)
{
  std::vector<bf16> numbers;
  unsigned state = static_cast<unsigned>(seed);
  for (int i = 0; i < n * n; ++i) {
    state = state * 1664525U + 1013904223U;
    numbers.push_back(bf16(static_cast<float>(state >> 16) / 65536 * 17 - 8.5F));
    numbers.back() = bf16(std::round(static_cast<float>(numbers.back())));
  }
  return numbers;
}

/// The sums over k of f(line, k) g(k, column).
template <class F, class G>
std::vector<float> product(const F& f, const G& g)
{
  std::vector<float> sums;
  for (int line = 0; line < n; ++line)
    for (int column = 0; column < n; ++column) {
      float sum = 0;
      for (int k = 0; k < n; ++k) sum += f(line, k) * g(k, column);
      sums.push_back(sum);
    }
  return sums;
}

float at(const std::vector<bf16>& factor, int line, int column)
{
  return static_cast<float>(factor[static_cast<std::size_t>(line * n + column)]);
}

std::vector<bf16> rounded(const std::vector<float>& numbers)
{
  return {numbers.begin(), numbers.end()};
}

std::vector<float> widened(const std::vector<bf16>& numbers)
{
  std::vector<float> wide;
  for (const bf16 number : numbers) wide.push_back(static_cast<float>(number));
  return wide;
}

}  // namespace

TEST_CASE("tensor tiles: products are those of plain loops, for either layout of the factors")
{
  Gpu gpu;
  const std::vector<bf16> a = whole_numbers(1), b = whole_numbers(2);
  const Buffer left = gpu.filled(a), right = gpu.filled(b), half = gpu.filled(std::vector<bf16>(n * n));
  const Buffer with_lines = gpu.filled(std::vector<float>(n * n)),
               with_columns = gpu.filled(std::vector<float>(n * n));
  const Buffer of_product = gpu.filled(std::vector<float>(n * n));
  multiply_by_tiles(
      cuda_stream(*gpu.stream),
      {left.tensor().data<bf16>(), right.tensor().data<bf16>(), with_lines.tensor().data<float>(),
       with_columns.tensor().data<float>(), of_product.tensor().data<float>(), half.tensor().data<bf16>()});
  const auto read_a = [&](int line, int column) { return at(a, line, column); };
  const auto read_b = [&](int line, int column) { return at(b, line, column); };
  const std::vector<float> by_lines = product(read_a, [&](int k, int column) { return at(b, column, k); });
  const std::vector<float> by_columns = product(read_a, read_b);
  const std::vector<bf16> inner = rounded(by_lines);
  const auto read_inner = [&](int line, int column) { return at(inner, line, column); };
  CHECK(to_host<float>(*gpu.stream, with_lines.tensor()) == by_lines);
  CHECK(to_host<float>(*gpu.stream, with_columns.tensor()) == by_columns);
  CHECK(to_host<float>(*gpu.stream, of_product.tensor()) == product(read_inner, read_b));
  CHECK(widened(to_host<bf16>(*gpu.stream, half.tensor())) == widened(rounded(by_columns)));
}

TEST_CASE("power_of_two: is near the power, and zero at -infinity")
{
  Gpu gpu;
  const std::vector<float> exponents{0, -1, 3, 0.5F, -0.25F, -17.3F, -100.9F, 42.42F};
  std::vector<float> numbers = exponents;
  numbers.push_back(-std::numeric_limits<float>::infinity());
  numbers.push_back(-1000);
  const Buffer from = gpu.filled(numbers), to = gpu.filled(numbers);
  raise_two(cuda_stream(*gpu.stream), to.tensor().data<float>(), from.tensor().data<float>(), std::ssize(numbers));
  const std::vector<float> powers = to_host<float>(*gpu.stream, to.tensor());
  for (std::size_t i = 0; i < exponents.size(); ++i)
    CHECK(powers[i] ==
          Approx(std::exp2(static_cast<double>(exponents[i]))).epsilon(4e-7));  // 2 units in the last place
  CHECK(powers[exponents.size()] == 0);
  CHECK(powers[exponents.size() + 1] == 0);
}
