#include <vector>

#include "common/base/error.hpp"
#include "gpt2/kernels/reference/reference.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// (rows of a, columns of a, columns of b): none, one or several whole tiles of 4 x 16, and remainders.
struct Size {
  std::int64_t m, k, n;
};
constexpr Size sizes[] = {{1, 1, 1}, {5, 7, 3}, {4, 16, 16}, {13, 24, 37}, {9, 64, 33}};

/// @p before + a b + bias in f64, row by row; a and b are indexed through their strides.
std::vector<double> plain_product(const Matrix& a, const Matrix& b, const std::vector<double>& bias,
                                  const std::vector<double>& before)
{
  const std::vector<double> left = values_of(a.data), right = values_of(b.data);
  std::vector<double> out;
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < b.columns; ++j) {
      double sum = before.empty() ? 0 : before[out.size()];
      if (!bias.empty()) sum += bias[static_cast<std::size_t>(j)];
      for (std::int64_t k = 0; k < a.columns; ++k)
        sum += left[static_cast<std::size_t>(i * a.row_stride + k * a.column_stride)] *
               right[static_cast<std::size_t>(k * b.row_stride + j * b.column_stride)];
      out.push_back(sum);
    }
  return out;
}

/// Every order that @p k terms can have.
std::vector<SumOrder> orders_of(std::int64_t k)
{
  std::vector<SumOrder> orders{SumOrder::sequential(k), SumOrder::split(k, 8), SumOrder::split(k, 1),
                               SumOrder::batch(1, k), SumOrder::sequences(k)};
  if (k % 3 == 0) orders.push_back(SumOrder::split(k, 4, 3));
  if (k % 8 == 0) orders.push_back(SumOrder::batch(k / 8, 8));
  if (k % 4 == 0) orders.push_back(SumOrder::batch(k / 4, 4, 2));
  return orders;
}

/// A (rows, columns) matrix, or the transpose of one that is stored the other way.
Matrix matrix(Laboratory& lab, DType type, std::int64_t rows, std::int64_t columns, bool transposed,
              std::uint32_t series)
{
  if (!transposed) return Matrix::of(lab.filled(type, {rows, columns}, series), rows);
  return Matrix::of(lab.filled(type, {columns, rows}, series), columns).transposed();
}

}  // namespace

TEST_CASE("SumOrder: the runs of all leaves hold every term once, in the order of sections and blocks")
{
  for (const std::int64_t k : {1, 3, 5, 24, 120})
    for (const SumOrder& order : orders_of(k)) {
      REQUIRE(order.terms() == k);
      std::vector<int> seen(static_cast<std::size_t>(k));
      for (std::int64_t leaf = 0; leaf < order.leaves(); ++leaf)
        for (std::int64_t run = 0; run < order.runs(); ++run)
          for (std::int64_t i = order.run(leaf, run).first; i < order.run(leaf, run).end(); ++i)
            ++seen.at(static_cast<std::size_t>(i));
      CHECK(seen == std::vector<int>(static_cast<std::size_t>(k), 1));
    }
  CHECK(SumOrder::split(96, 8, 3).run(1, 0) == Range{4, 4});          // the second eighth of q,
  CHECK(SumOrder::split(96, 8, 3).run(1, 2) == Range{68, 4});         // and that of v
  CHECK(SumOrder::batch(3, 32).run(2 * 16 + 15, 0) == Range{94, 2});  // the last sixteenth of sequence 2
  CHECK(leaves_of({0, 1}) == 8);
  CHECK(leaves_of({1, 4}) == 2);
  CHECK(leaves_of({7, 8}) == 1);
}

TEST_CASE("SumOrder: the leaves of a shard of each sequence are its sixteenths of the whole sequence")
{
  constexpr std::int64_t B = 3, T = 80;
  const SumOrder whole = SumOrder::batch(B, T);
  for (const int n : {1, 2, 4, 8, 16})
    for (int part = 0; part < n; ++part) {
      const std::int64_t sixteenths = token_leaves_of({part, n}), tokens = T / n;
      const SumOrder order = SumOrder::batch(B, tokens, sixteenths);
      CAPTURE(n, part);
      REQUIRE(order.leaves() == B * sixteenths);
      for (std::int64_t b = 0; b < B; ++b)
        for (std::int64_t e = 0; e < sixteenths; ++e) {
          const Range mine = order.run(b * sixteenths + e, 0);  // of rows of this part
          const Range first{mine.first - b * tokens + b * T + part * tokens, mine.count};
          CHECK(first == whole.run(16 * b + part * sixteenths + e, 0));
        }
    }
  CHECK(SumOrder::batch(2, 15, 1).run(1, 0) == Range{15, 15});  // a third of 45 tokens: one leaf
}

TEST_CASE("matmul: is the plain triple loop in every order, with transposed factors, bias and accumulation")
{
  for (const Size& s : sizes)
    for (const SumOrder& order : orders_of(s.k))
      for (const int variant : {0, 1, 2, 3, 4}) {
        INFO("(" << s.m << ", " << s.k << ", " << s.n << "), leaves " << order.leaves() << ", variant " << variant);
        Laboratory lab;
        const Matrix a = matrix(lab, DType::f64, s.m, s.k, variant == 1 || variant == 3, 1);
        const Matrix b = matrix(lab, DType::f64, s.k, s.n, variant == 2 || variant == 3, 2);
        const bool accumulate = variant == 3;
        const Tensor bias = variant == 4 ? lab.filled(DType::f64, {s.n}, 3) : Tensor();
        const Tensor out = lab.filled(DType::f64, {s.m, s.n}, 4);
        const std::vector<double> expected =
            plain_product(a, b, values_of(bias), accumulate ? values_of(out) : std::vector<double>());
        lab.kernels()->matmul(Matrix::of(out, s.m), a, b, order, bias, accumulate);
        CHECK(relative_error(out, expected) < 1e-13);  // f64, sums in another order
      }
}

TEST_CASE("matmul: has the bits of the reference in every type, order and layout")
{
  constexpr std::pair<DType, DType> types[] = {
      {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::f32, DType::bf16}, {DType::f64, DType::f64}};
  for (const OrderedFamily& family : ordered_families())
    for (const auto& [sums, factors] : types)
      for (const Size& s : sizes)
        for (const SumOrder& order : orders_of(s.k))
          for (const int variant : {0, 1, 2, 3}) {
            INFO(family.name << ": " << name_of(sums) << " of " << name_of(factors) << ", (" << s.m << ", " << s.k
                             << ", " << s.n << "), leaves " << order.leaves() << ", variant " << variant);
            Laboratory lab(family.make());
            const Matrix a = matrix(lab, factors, s.m, s.k, variant % 2 == 1, 1);
            const Matrix b = matrix(lab, factors, s.k, s.n, variant / 2 == 1, 2);
            const Tensor bias = variant == 1 ? lab.filled(factors, {s.n}, 3) : Tensor();
            const Tensor out = lab.filled(sums, {s.m, s.n}, 4), plain = lab.copied(out);
            lab.kernels()->matmul(Matrix::of(out, s.m), a, b, order, bias, variant >= 2);
            make_reference_kernels()->matmul(Matrix::of(plain, s.m), a, b, order, bias, variant >= 2);
            REQUIRE(different_bits(out, plain) == 0);
          }
}

TEST_CASE("matmul, bias_backward: dw, dx and dbias of y = x w + bias are those of central differences")
{
  constexpr std::int64_t B = 3, T = 5, R = B * T, C = 7, F = 18;
  Laboratory lab;
  const Kernels& kernels = lab.kernels();
  const Tensor x = lab.filled(DType::f64, {R, C}, 1), w = lab.filled(DType::f64, {C, F}, 2);
  const Tensor bias = lab.filled(DType::f64, {F}, 3), dy = lab.filled(DType::f64, {R, F}, 4, 1, 0.2);
  const Tensor y = lab.zeros(DType::f64, {R, F});
  const auto objective = [&] {
    kernels->matmul(Matrix::of(y, R), Matrix::of(x, R), Matrix::of(w, C), SumOrder::sequential(C), bias);
    return inner_product(dy, y);
  };
  const Tensor dx = lab.filled(DType::f64, {R, C}, 5), dw = lab.zeros(DType::f64, {C, F});
  const Tensor dbias = lab.zeros(DType::f64, {F});
  kernels->matmul(Matrix::of(dw, C), Matrix::of(x, R).transposed(), Matrix::of(dy, R), SumOrder::batch(B, T), {},
                  true);
  kernels->matmul(Matrix::of(dx, R), Matrix::of(dy, R), Matrix::of(w, C).transposed(), SumOrder::split(F, 8, 3));
  kernels->bias_backward(dbias, dy, SumOrder::batch(B, T));
  CHECK(relative_error(dw, central_differences(w, objective)) < difference_tolerance);
  CHECK(relative_error(dx, central_differences(x, objective)) < difference_tolerance);
  CHECK(relative_error(dbias, central_differences(bias, objective)) < difference_tolerance);

  const Tensor twice = lab.copied(dbias);
  kernels->bias_backward(twice, dy, SumOrder::batch(B, T));
  kernels->add(dbias, dbias);
  CHECK(relative_error(twice, dbias) < 1e-15);  // it accumulates
}

TEST_CASE("matmul: a sequential sum has the bits of a loop that adds term by term, each rounded once")
{
  constexpr std::int64_t m = 6, k = 50, n = 19;
  Laboratory lab;
  const Tensor a = lab.filled(DType::f32, {m, k}, 1), b = lab.filled(DType::f32, {k, n}, 2);
  const Tensor out = lab.zeros(DType::f32, {m, n}), expected = lab.zeros(DType::f32, {m, n});
  lab.kernels()->matmul(Matrix::of(out, m), Matrix::of(a, m), Matrix::of(b, k), SumOrder::sequential(k), {}, false);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t t = 0; t < k; ++t) {
        float& sum = expected.data<float>()[i * n + j];
        sum = std::fma(a.data<float>()[i * k + t], b.data<float>()[t * n + j], sum);
      }
  CHECK(different_bits(out, expected) == 0);
}

namespace {

/// Cuts a product's k terms into @p parts as tensor parallelism does, and holds the sum of the parts, neighbours first,
/// against the bits of the whole.
void check_parts(Laboratory& lab, std::int64_t sections, std::int64_t parts)
{
  constexpr std::int64_t m = 5, n = 21;
  const std::int64_t k = 48 * sections, mine = k / sections / parts;
  const Tensor a = lab.filled(DType::f32, {m, k}, 1), b = lab.filled(DType::f32, {k, n}, 2);
  const Tensor whole = lab.zeros(DType::f32, {m, n});
  lab.kernels()->matmul(Matrix::of(whole, m), Matrix::of(a, m), Matrix::of(b, k), SumOrder::split(k, 8, sections));

  std::vector<Tensor> sums;
  for (std::int64_t part = 0; part < parts; ++part) {
    const Tensor left = lab.zeros(DType::f32, {m, k / parts}), right = lab.zeros(DType::f32, {k / parts, n});
    for (std::int64_t s = 0; s < sections; ++s)
      for (std::int64_t t = 0; t < mine; ++t) {
        const std::int64_t from = s * k / sections + part * mine + t, to = s * mine + t;
        for (std::int64_t i = 0; i < m; ++i) left.data<float>()[i * k / parts + to] = a.data<float>()[i * k + from];
        lab.stream().copy(right.slice({to * n, n}), b.slice({from * n, n}));
      }
    sums.push_back(lab.zeros(DType::f32, {m, n}));
    lab.kernels()->matmul(Matrix::of(sums.back(), m), Matrix::of(left, m), Matrix::of(right, k / parts),
                          SumOrder::split(k / parts, leaves_of({0, static_cast<int>(parts)}), sections));
  }
  for (std::size_t distance = 1; distance < sums.size(); distance *= 2)
    for (std::size_t i = 0; i < sums.size(); i += 2 * distance) lab.kernels()->add(sums[i], sums[i + distance]);
  CHECK(different_bits(sums[0], whole) == 0);

  const Tensor other = lab.zeros(DType::f32, {m, n});  // the claim says something: another order has other bits
  lab.kernels()->matmul(Matrix::of(other, m), Matrix::of(a, m), Matrix::of(b, k), SumOrder::sequential(k));
  CHECK(different_bits(other, whole) > 0);
}

}  // namespace

TEST_CASE("matmul: parts of a split contraction add up, neighbours first, to the bits of the whole")
{
  for (const OrderedFamily& family : ordered_families())
    for (const std::int64_t sections : {1, 3})
      for (const std::int64_t parts : {2, 4, 8}) {
        INFO(family.name << ", " << sections << " sections, " << parts << " parts");
        Laboratory lab(family.make());
        check_parts(lab, sections, parts);
      }
}

TEST_CASE("matmul: bf16 factors are summed in f32; the result is rounded only when it is stored as bf16")
{
  constexpr std::int64_t m = 9, k = 40, n = 18;
  Laboratory lab;
  const Tensor a = lab.filled(DType::bf16, {m, k}, 1), b = lab.filled(DType::bf16, {k, n}, 2);
  const Tensor bias = lab.filled(DType::bf16, {n}, 3);
  const Tensor wide_a = lab.converted(a, DType::f32), wide_b = lab.converted(b, DType::f32);
  const Tensor exact = lab.zeros(DType::f32, {m, n}), sums = lab.zeros(DType::f32, {m, n});
  const Tensor rounded = lab.zeros(DType::bf16, {m, n});
  const SumOrder order = SumOrder::split(k, 8);
  lab.kernels()->matmul(Matrix::of(exact, m), Matrix::of(wide_a, m), Matrix::of(wide_b, k), order,
                        lab.converted(bias, DType::f32));
  lab.kernels()->matmul(Matrix::of(sums, m), Matrix::of(a, m), Matrix::of(b, k), order, bias);
  lab.kernels()->matmul(Matrix::of(rounded, m), Matrix::of(a, m), Matrix::of(b, k), order, bias);
  CHECK(different_bits(sums, exact) == 0);
  CHECK(different_bits(rounded, lab.converted(exact, DType::bf16)) == 0);
}

TEST_CASE("matmul: mismatched shapes are refused")
{
  Laboratory lab;
  const Tensor a = lab.zeros(DType::f32, {4, 6}), b = lab.zeros(DType::f32, {6, 5}),
               out = lab.zeros(DType::f32, {4, 5});
  const auto product = [&](std::int64_t rows, std::int64_t inner, std::int64_t terms) {
    lab.kernels()->matmul(Matrix::of(out, rows), Matrix::of(a, 4), Matrix::of(b, inner),
                          SumOrder::sequential(terms));
  };
  CHECK_NOTHROW(product(4, 6, 6));
  CHECK_THROWS_AS(product(5, 6, 6), Error);
  CHECK_THROWS_AS(product(4, 5, 6), Error);
  CHECK_THROWS_AS(product(4, 6, 5), Error);
}
