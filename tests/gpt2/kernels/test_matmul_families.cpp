#include <vector>

#include "common/base/error.hpp"
#include "gpt2/kernels/cpu/gemm.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// (rows of a, columns of a, columns of b).
struct Size {
  std::int64_t m, k, n;
};

/// Where a factor stands in memory.
enum class Place { whole, transposed, wide, wide_transposed };
constexpr Place places[] = {Place::whole, Place::transposed, Place::wide, Place::wide_transposed};

/// The operation on the product.
struct Use {
  bool bias, accumulate;
};
constexpr Use uses[] = {{false, false}, {true, false}, {false, true}, {true, true}};

/// A (rows, columns) matrix, or the transposed of one; whole, or some columns of a wider one.
Matrix factor(Data& data, std::int64_t rows, std::int64_t columns, Place place, std::uint32_t series)
{
  const bool transposed = place == Place::transposed || place == Place::wide_transposed;
  const std::int64_t stored_rows = transposed ? columns : rows, stored_columns = transposed ? rows : columns;
  const bool wide = place == Place::wide || place == Place::wide_transposed;
  const std::int64_t before = wide ? 3 : 0, width = stored_columns + (wide ? 5 : 0);
  const Tensor all = data.input({stored_rows, width}, numbers(series));
  const Matrix stored{all.slice({before, stored_rows * width - before}), stored_rows, stored_columns, width, 1};
  return transposed ? stored.transposed() : stored;
}

/// The product as the gradient of a parameter, in f32 or as the factors, or as an activation.
Computation product(const Size& s, Place a, Place b, Use use, Role role = Role::gradient)
{
  return [=](Data& data, const Kernels& kernels) {
    const Tensor out = use.accumulate ? data.updated({s.m, s.n}, numbers(4), role) : data.output({s.m, s.n}, role);
    const Tensor bias = use.bias ? data.input({s.n}, numbers(3)) : Tensor();
    kernels->matmul(Matrix::of(out, s.m), factor(data, s.m, s.k, a, 1), factor(data, s.k, s.n, b, 2),
                    SumOrder::split(s.k, 8), bias, use.accumulate);
    return std::vector<Output>{{"out", out, s.n}};
  };
}

}  // namespace

TEST_CASE("every matmul: is the reference's wherever the factors lie, with bias and accumulation")
{
  // One element; a sum of one term; one row; one column; odd numbers on either side of blocks of 8, 16, 32 and 64.
  constexpr Size sizes[] = {{1, 1, 1}, {5, 1, 3}, {1, 40, 33},   {33, 17, 1},
                            {1, 9, 1}, {7, 8, 9}, {65, 63, 129}, {31, 200, 64}};
  std::size_t size = 0;
  for (const Size& s : sizes) {
    for (std::size_t a = 0; a < 4; ++a)
      for (std::size_t b = 0; b < 4; ++b) {
        const Use use = uses[(size + a + b) % 4];  // two of the eight sizes for each pair of places
        INFO("(" << s.m << ", " << s.k << ", " << s.n << "), places " << a << " and " << b << ", bias " << use.bias
                 << ", accumulate " << use.accumulate);
        check_against_reference(product(s, places[a], places[b], use));
      }
    ++size;
  }
}

TEST_CASE("every matmul: is the reference's in the sizes of a head: 50257 entries padded to 50264")
{
  constexpr std::int64_t R = 3, C = 5, V = 50264;
  check_against_reference(
      product({R, C, V}, Place::whole, Place::transposed, {false, false}, Role::activation));   // logits
  check_against_reference(product({V, R, C}, Place::transposed, Place::whole, {false, true}));  // d.token
  check_against_reference(
      product({R, V, C}, Place::whole, Place::whole, {false, false}, Role::activation));  // dnormalised
}

TEST_CASE("every matmul: is the reference's where rows, columns and terms are more than a block")
{
  constexpr Size sizes[] = {{33, 1600, 1100}, {530, 800, 40}};
  for (const Size& s : sizes)
    for (const Place place : {Place::whole, Place::transposed}) {
      INFO("(" << s.m << ", " << s.k << ", " << s.n << "), transposed " << (place == Place::transposed));
      check_against_reference(product(s, place, place, {true, true}));
    }
}

TEST_CASE("every matmul: mismatched shapes are refused")
{
  for_each_family([](const Kernels& kernels) {
    Data data;
    const Tensor a = data.input({4, 6}, numbers(1)), b = data.input({6, 5}, numbers(2)), out = data.output({4, 5});
    const auto multiply = [&](std::int64_t rows, std::int64_t inner) {
      kernels->matmul(Matrix::of(out, rows), Matrix::of(a, 4), Matrix::of(b, inner), SumOrder::sequential(6));
    };
    CHECK_NOTHROW(multiply(4, 6));
    CHECK_THROWS_AS(multiply(5, 6), Error);
    CHECK_THROWS_AS(multiply(4, 5), Error);
  });
}

TEST_CASE("every bias_backward: adds the reference's sum over rows")
{
  struct {
    std::int64_t R, n;
  } constexpr sizes[] = {{1, 1}, {1, 37}, {65, 7}, {7, 255}, {33, 257}, {200, 768}, {3, 2048}};
  for (const auto& s : sizes) {
    INFO(s.R << " rows of " << s.n);
    check_against_reference([&](Data& data, const Kernels& kernels) {
      const Tensor dbias = data.updated({s.n}, numbers(1), Role::gradient);
      kernels->bias_backward(dbias, data.input({s.R, s.n}, numbers(2)), SumOrder::batch(1, s.R));
      return std::vector<Output>{{"dbias", dbias, 1}};
    });
  }
}

TEST_CASE("gemm: small products in whole strips and large results have every sum, added to what was there or not")
{
  struct Sizes {
    std::int64_t m, n, k;
  };
  constexpr std::int64_t guard = 32, line = 64;
  for (const auto& [m, n, k] : {Sizes{64, 96, 64}, Sizes{128, 64, 128}, Sizes{32, 32, 256}, Sizes{545, 1000, 40}})
    for (const int which : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const bool left = which % 2 == 1, right = which / 2 % 2 == 1, accumulate = which / 4 == 1;
      INFO(m << " x " << n << " x " << k << ", " << which);
      const auto a_of = [&](std::int64_t i, std::int64_t t) { return static_cast<float>((3 * i + 5 * t) % 7 - 3); };
      const auto b_of = [&](std::int64_t t, std::int64_t j) { return static_cast<float>((2 * t + 3 * j) % 5 - 2); };
      std::vector<bf16> a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(k * n));
      for (std::int64_t t = 0; t < k; ++t) {
        for (std::int64_t i = 0; i < m; ++i)
          a[static_cast<std::size_t>(left ? t * m + i : i * k + t)] = bf16(a_of(i, t));
        for (std::int64_t j = 0; j < n; ++j)
          b[static_cast<std::size_t>(right ? j * k + t : t * n + j)] = bf16(b_of(t, j));
      }
      std::vector<float> memory(static_cast<std::size_t>(m * n + guard + line), 1.0F);
      float* const out =
          memory.data() + (line - reinterpret_cast<std::uintptr_t>(memory.data()) % line) / sizeof(float);
      gemm(out, n, GemmOperand<bf16>{a.data(), left ? m : k, left},
           GemmOperand<bf16>{b.data(), right ? k : n, right}, m, n, k, accumulate);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          float sum = accumulate ? 1 : 0;  // whole numbers: exact in any order
          for (std::int64_t t = 0; t < k; ++t) sum += a_of(i, t) * b_of(t, j);
          wrong += out[i * n + j] == sum ? 0 : 1;
        }
      for (std::int64_t i = 0; i < guard; ++i) wrong += out[m * n + i] == 1 ? 0 : 1;
      CHECK(wrong == 0);
    }
}
