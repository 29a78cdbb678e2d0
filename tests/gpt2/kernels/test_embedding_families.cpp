#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

struct Size {
  std::int64_t B, T, C;
};
constexpr Size sizes[] = {{1, 1, 1}, {1, 1, 5}, {2, 8, 16}, {3, 5, 21}, {1, 67, 65}, {3, 4, 200}};

constexpr std::int64_t V = 11;
/// The whole vocabulary, and parts: in front, inside, behind; one entry; none that occurs.
constexpr Range entries[] = {{0, V}, {0, 4}, {3, 5}, {6, 5}, {2, 1}, {100, 8}};

/// Tokens of which some occur often, also in neighbouring rows, and some never; the first and the last entry do.
std::int64_t token_of(std::int64_t r)
{
  return r % 6 < 2 ? V - 1 : r * r % 7;
}

Computation token_forward(const Size& s, Range vocabulary, const std::function<std::int64_t(std::int64_t)>& token)
{
  return [=](Data& data, const Kernels& kernels) {
    const std::int64_t R = s.B * s.T;
    const Tensor y = data.output({R, s.C});
    kernels->token_forward(y, data.input({vocabulary.count, s.C}, numbers(1)), data.integers(R, token), vocabulary);
    return std::vector<Output>{{"y", y, s.C}};
  };
}

Computation token_backward(const Size& s, Range vocabulary, const std::function<std::int64_t(std::int64_t)>& token)
{
  return [=](Data& data, const Kernels& kernels) {
    const std::int64_t R = s.B * s.T;
    const Tensor dwte = data.updated({vocabulary.count, s.C}, numbers(2), Role::gradient);
    kernels->token_backward(dwte, data.input({R, s.C}, numbers(3)), data.integers(R, token), vocabulary,
                            SumOrder::batch(s.B, s.T));
    return std::vector<Output>{{"dwte", dwte, s.C}};
  };
}

constexpr Tolerance copy{0, 0, 0};  // the same numbers

}  // namespace

TEST_CASE("every token_forward, token_backward: are the reference's, for all parts of the vocabulary")
{
  for (const Size& s : sizes)
    for (const Range vocabulary : entries) {
      INFO("B " << s.B << ", T " << s.T << ", C " << s.C << ", entries " << vocabulary.first << " + "
                << vocabulary.count);
      check_against_reference(token_forward(s, vocabulary, token_of), copy);
      check_against_reference(token_backward(s, vocabulary, token_of));
    }
}

TEST_CASE("every token_forward, token_backward: are the reference's with 50257 entries, whole and halved")
{
  constexpr std::int64_t padded = 50264;
  constexpr Size s{2, 20, 1};
  const auto token = [](std::int64_t r) { return r % 7 == 0 ? 50256 : r * 25131 % 50257; };
  for (const Range vocabulary : {Range{0, padded}, Range{0, padded / 2}, Range{padded / 2, padded / 2}}) {
    INFO("entries " << vocabulary.first << " + " << vocabulary.count);
    check_against_reference(token_forward(s, vocabulary, token), copy);
    check_against_reference(token_backward(s, vocabulary, token));
  }
}

TEST_CASE("every token_backward: adds more rows of a token than a block of a GPU lists at once")
{
  check_against_reference(token_backward({1, 4000, 9}, {0, 2}, [](std::int64_t r) { return r % 5 == 0 ? 1 : 0; }));
}

TEST_CASE("every position_forward: is the reference's, with the same mask, also in place")
{
  for (const Size& s : sizes)
    for (const double rate : {0.0, 0.4})
      for (const bool in_place : {false, true}) {
        INFO("B " << s.B << ", T " << s.T << ", C " << s.C << ", dropout " << rate << ", in place " << in_place);
        const Rows rows{{2, s.B}, {4, s.T}};  // not the first positions, and not the last
        check_against_reference([&](Data& data, const Kernels& kernels) {
          const Shape shape{rows.count(), s.C};
          const Tensor x = in_place ? data.updated(shape, numbers(1)) : data.output(shape);
          kernels->position_forward(x, in_place ? x : data.input(shape, numbers(1)),
                                    data.input({s.T + 9, s.C}, numbers(2)), rows,
                                    {rate, 5, 3, 0, Purpose::embedding_dropout, rows});
          return std::vector<Output>{{"x", x, 1}};
        });
      }
}

TEST_CASE("every position_backward: adds the reference's sum over sequences, to the positions of the rows only")
{
  for (const Size& s : sizes) {
    INFO("B " << s.B << ", T " << s.T << ", C " << s.C);
    check_against_reference([&](Data& data, const Kernels& kernels) {
      const Tensor dwpe = data.updated({s.T + 9, s.C}, numbers(1), Role::gradient);
      kernels->position_backward(dwpe, data.input({s.B * s.T, s.C}, numbers(2)), {{2, s.B}, {4, s.T}});
      return std::vector<Output>{{"dwpe", dwpe, s.C}};
    });
  }
}
