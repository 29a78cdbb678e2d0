#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t V = 11, context = 9;

struct Size {
  std::int64_t B, T, C;
};
constexpr Size sizes[] = {{1, 1, 5}, {2, 8, 16}, {3, 5, 21}};

/// Tokens of which some occur often and some never.
Tensor tokens_of(Laboratory& lab, std::int64_t count)
{
  return lab.integers(count, [](std::int64_t i) { return i * i % 7 + (i % 5 == 0 ? 4 : 0); });
}

}  // namespace

TEST_CASE("token_forward: copies the rows of the tokens; parts give zeros elsewhere")
{
  for (const OrderedFamily& family : ordered_families())
    for (const Size s : sizes) {
      INFO(family.name);
      Laboratory lab(family.make());
      const std::int64_t R = s.B * s.T;
      const Tensor wte = lab.filled(DType::f32, {V, s.C}, 1), tokens = tokens_of(lab, R);
      const Tensor y = lab.filled(DType::f32, {R, s.C}, 2);
      lab.kernels()->token_forward(y, wte, tokens, {0, V});
      for (std::int64_t r = 0; r < R; ++r)
        REQUIRE(different_bits(y.slice({r * s.C, s.C}), wte.slice({tokens.data<std::int32_t>()[r] * s.C, s.C})) ==
                0);

      const Tensor sum = lab.zeros(DType::f32, {R, s.C}), part = lab.zeros(DType::f32, {R, s.C});
      for (const Range entries : {Range{0, 4}, Range{4, 7}}) {
        lab.kernels()->token_forward(part, wte.slice({entries.first * s.C, entries.count * s.C}), tokens, entries);
        lab.kernels()->add(sum, part);
      }
      CHECK(different_bits(sum, y) == 0);
    }
}

TEST_CASE("token_backward: adds the gradient that central differences give, also to a part of the vocabulary")
{
  for (const Size s : sizes)
    for (const Range entries : {Range{0, V}, Range{3, 5}}) {
      Laboratory lab;
      const std::int64_t R = s.B * s.T;
      const Tensor wte = lab.filled(DType::f64, {entries.count, s.C}, 1), tokens = tokens_of(lab, R);
      const Tensor dy = lab.filled(DType::f64, {R, s.C}, 2), y = lab.zeros(DType::f64, {R, s.C});
      const Tensor dwte = lab.filled(DType::f64, wte.shape(), 3);
      std::vector<double> expected = central_differences(wte, [&] {
        lab.kernels()->token_forward(y, wte, tokens, entries);
        return inner_product(dy, y);
      });
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += values_of(dwte)[i];
      lab.kernels()->token_backward(dwte, dy, tokens, entries, SumOrder::batch(s.B, s.T));
      CHECK(relative_error(dwte, expected) < difference_tolerance);
    }
}

TEST_CASE("position_forward: x is mask (y + wpe[position]), whichever tokens the rows are, also in place")
{
  for (const Size s : sizes)
    for (const double rate : {0.0, 0.4}) {
      Laboratory lab;
      const Rows rows{{2, s.B}, {context - s.T, s.T}};  // the last T positions
      const Dropout dropout{rate, 5, 3, 0, Purpose::embedding_dropout, rows};
      const Tensor wpe = lab.filled(DType::f64, {context, s.C}, 1),
                   y = lab.filled(DType::f64, {rows.count(), s.C}, 2);
      const Tensor mask = lab.filled(DType::f64, y.shape(), 1, 0, 1), x = lab.zeros(DType::f64, y.shape());
      lab.kernels()->dropout(mask, mask, dropout);
      std::vector<double> expected = values_of(y);
      for (std::int64_t r = 0; r < rows.count(); ++r)
        for (std::int64_t c = 0; c < s.C; ++c) {
          const auto i = static_cast<std::size_t>(r * s.C + c);
          expected[i] += wpe.data<double>()[(rows.tokens.first + r % s.T) * s.C + c];
          expected[i] *= mask.data<double>()[i];
        }
      lab.kernels()->position_forward(x, y, wpe, rows, dropout);
      CHECK(relative_error(x, expected) == 0);
      lab.kernels()->position_forward(y, y, wpe, rows, dropout);
      CHECK(different_bits(x, y) == 0);
    }
}

TEST_CASE("position_backward: adds the gradient that central differences give")
{
  for (const Size s : sizes) {
    Laboratory lab;
    const Rows rows{{2, s.B}, {context - s.T, s.T}};
    const Dropout dropout{0.4, 5, 3, 0, Purpose::embedding_dropout, rows};
    const Tensor wpe = lab.filled(DType::f64, {context, s.C}, 1),
                 y = lab.filled(DType::f64, {rows.count(), s.C}, 2);
    const Tensor x = lab.zeros(DType::f64, y.shape()), dx = lab.filled(DType::f64, y.shape(), 3);
    const Tensor dwpe = lab.filled(DType::f64, wpe.shape(), 4);
    std::vector<double> expected = central_differences(wpe, [&] {
      lab.kernels()->position_forward(x, y, wpe, rows, dropout);
      return inner_product(dx, x);
    });
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += values_of(dwpe)[i];
    lab.kernels()->dropout(dx, dx, dropout);
    lab.kernels()->position_backward(dwpe, dx, rows);
    CHECK(relative_error(dwpe, expected) < difference_tolerance);
  }
}

TEST_CASE("token_backward, position_backward: the halves of a batch add up to its bits")
{
  constexpr std::int64_t B = 4, T = 13, C = 18;
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    Laboratory lab(family.make());
    const Tensor dx = lab.filled(DType::f32, {B * T, C}, 1), tokens = tokens_of(lab, B * T);
    const auto gradients = [&](Range sequences) {
      const Range rows{sequences.first * T, sequences.count * T};
      const Tensor d = lab.zeros(DType::f32, {V + T, C});
      const Tensor part = dx.slice({rows.first * C, rows.count * C});
      lab.kernels()->token_backward(d.slice({0, V * C}), part, tokens.slice(rows), {0, V},
                                    SumOrder::batch(sequences.count, T));
      lab.kernels()->position_backward(d.slice({V * C, T * C}), part, {sequences, {0, T}});
      return d;
    };
    const Tensor whole = gradients({0, B}), sum = gradients({0, B / 2});
    lab.kernels()->add(sum, gradients({B / 2, B / 2}));
    CHECK(different_bits(sum, whole) == 0);
  }
}

TEST_CASE("embedding: bf16 gives f32's results, rounded; gradients are summed in f32")
{
  constexpr Size s{3, 5, 21};
  Laboratory lab;
  const Rows rows{{0, s.B}, {0, s.T}};
  const Dropout dropout{0.25, 5, 3, 0, Purpose::embedding_dropout, rows};
  const Tensor tokens = tokens_of(lab, rows.count());
  const auto run = [&](const Tensor& wte, const Tensor& wpe, const Tensor& dx) {
    const Tensor x = lab.zeros(wte.type(), {rows.count(), s.C}), d = lab.zeros(DType::f32, {V + context, s.C});
    lab.kernels()->token_forward(x, wte, tokens, {0, V});
    lab.kernels()->position_forward(x, x, wpe, rows, dropout);
    lab.kernels()->token_backward(d.slice({0, V * s.C}), dx, tokens, {0, V}, SumOrder::batch(s.B, s.T));
    lab.kernels()->position_backward(d.slice({V * s.C, context * s.C}), dx, rows);
    return std::pair{x, d};
  };
  const Tensor wte = lab.filled(DType::bf16, {V, s.C}, 1), wpe = lab.filled(DType::bf16, {context, s.C}, 2);
  const Tensor dx = lab.filled(DType::bf16, {rows.count(), s.C}, 3);
  const auto [x, d] = run(wte, wpe, dx);
  const auto [wide_x, wide_d] =
      run(lab.converted(wte, DType::f32), lab.converted(wpe, DType::f32), lab.converted(dx, DType::f32));
  CHECK(different_bits(x, lab.converted(wide_x, DType::bf16)) == 0);  // tokens are copied, the sum is rounded once
  CHECK(different_bits(d, wide_d) == 0);
}
