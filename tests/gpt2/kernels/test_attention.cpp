#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/tree_sum.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr Mask causal{}, full{Mask::Kind::full, 0};

Mask prefix(std::int64_t tokens)
{
  return {Mask::Kind::prefix, tokens};
}

struct Case {
  AttentionShape shape;
  double dropout_rate = 0;
  std::vector<std::int64_t> lengths = {};  ///< of each sequence; empty: all T
};

// One token and several; one head and several, also such as are not the first of the model; every mask; a D that is half
// a vector register, more than one, and no multiple of one; sequences with and without padding.
const std::vector<Case> cases{{{1, 1, {0, 1}, 8, causal}},
                              {{2, 5, {0, 1}, 8, causal}},
                              {{1, 11, {0, 2}, 20, causal}},
                              {{3, 4, {0, 2}, 8, prefix(3)}},
                              {{1, 4, {0, 1}, 8, prefix(9)}},
                              {{1, 3, {0, 3}, 8, full}},
                              {{1, 3, {0, 1}, 48, full}},
                              {{1, 8, {0, 1}, 16, causal}},
                              {{2, 6, {2, 2}, 8, causal}, 0.3},
                              {{1, 7, {1, 1}, 20, prefix(4)}, 0.25},
                              {{1, 5, {0, 2}, 8, full}, 0.5},
                              {{3, 5, {0, 2}, 8, full}, 0, {4, 5, 1}},
                              {{2, 6, {2, 2}, 12, causal}, 0.3, {2, 5}},
                              {{2, 7, {0, 1}, 20, prefix(4)}, 0.25, {3, 6}}};

std::string text_of(const Case& c)
{
  return "B " + std::to_string(c.shape.B) + ", T " + std::to_string(c.shape.T) + ", heads " +
         std::to_string(c.shape.heads.count) + ", D " + std::to_string(c.shape.D) + ", " + c.shape.mask.text() +
         ", dropout " + std::to_string(c.dropout_rate) + (c.lengths.empty() ? "" : ", with padding");
}

/// One attention layer with its data.
struct Attention {
  Attention(Laboratory& laboratory, DType type, const Case& c)
      : lab(laboratory),
        shape(c.shape),
        dropout{c.dropout_rate, 5, 2, 3, Purpose::attention_dropout, {{6, shape.B}, {0, shape.T}}},
        qkv(lab.filled(type, {shape.B * shape.T, 3 * shape.heads.count * shape.D}, 1, 1.5)),
        dy(lab.filled(type, {shape.B * shape.T, shape.heads.count * shape.D}, 2, 1, 0.1)),
        y(lab.zeros(type, dy.shape())),
        log_sum_exp(lab.zeros(accumulator_of(type), {shape.B, shape.heads.count, shape.T})),
        dqkv(lab.filled(type, qkv.shape(), 3))
  {
    if (!c.lengths.empty())
      shape.lengths =
          lab.integers(shape.B, [&](std::int64_t b) { return c.lengths.at(static_cast<std::size_t>(b)); });
  }
  void forward() const { lab.kernels()->attention_forward(y, log_sum_exp, qkv, shape, dropout); }
  void backward() const { lab.kernels()->attention_backward(dqkv, dy, y, log_sum_exp, qkv, shape, dropout); }

  Laboratory& lab;
  AttentionShape shape;
  Dropout dropout;
  Tensor qkv, dy;         // what goes in
  Tensor y, log_sum_exp;  // what forward() gives
  Tensor dqkv;            // what backward() overwrites: not zero at first
};

bool sees(const AttentionShape& shape, std::int64_t b, std::int64_t query, std::int64_t key)
{
  const Mask& mask = shape.mask;
  if (!shape.lengths.empty() && key >= shape.lengths.data<std::int32_t>()[b]) return false;
  if (mask.kind == Mask::Kind::full) return true;
  return key <= query || (mask.kind == Mask::Kind::prefix && key < mask.prefix);
}

/// The dropout factor of one attention weight.
double factor(const Dropout& dropout, std::int64_t b, std::int64_t query, std::int64_t head, std::int64_t key)
{
  if (dropout.rate == 0) return 1;
  const PhiloxWords words =
      random_words(dropout.seed, dropout.purpose,
                   {dropout.step, dropout.rows.sequences.first + b, query, dropout.layer, head, key});
  return uniform(words[static_cast<std::size_t>(key % 4)]) < dropout.rate ? 0 : 1 / (1 - dropout.rate);
}

/// One row of attention, as the formula says it: scores of visible keys, soft-max, dropout, weighted sum of values.
/// Returns the logarithm of the sum of exp(score) and writes D numbers to @p y.
double plain_row(const Attention& a, const std::vector<double>& qkv, std::int64_t b, std::int64_t head,
                 std::int64_t query, double* y)
{
  const std::int64_t D = a.shape.D, width = a.shape.heads.count * D;
  const auto at = [&](std::int64_t t, std::int64_t section, std::int64_t d) {
    return qkv[static_cast<std::size_t>((b * a.shape.T + t) * 3 * width + section * width + head * D + d)];
  };
  std::vector<double> weights;
  for (std::int64_t k = 0; k < a.shape.T; ++k) {
    double score = 0;
    for (std::int64_t d = 0; d < D; ++d) score += at(query, 0, d) * at(k, 1, d) / std::sqrt(static_cast<double>(D));
    weights.push_back(sees(a.shape, b, query, k) ? std::exp(score) : 0);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::int64_t k = 0; k < a.shape.T; ++k) {
    const double dropped = factor(a.dropout, b, query, a.shape.heads.first + head, k);
    for (std::int64_t d = 0; d < D; ++d) y[d] += weights[static_cast<std::size_t>(k)] / sum * dropped * at(k, 2, d);
  }
  return std::log(sum);
}

}  // namespace

TEST_CASE("attention_forward: y and log_sum_exp are those of a plain loop")
{
  for (const Case& c : cases) {
    INFO(text_of(c));
    Laboratory lab;
    const Attention a(lab, DType::f64, c);
    a.forward();
    const std::vector<double> qkv = values_of(a.qkv);
    std::vector<double> y(static_cast<std::size_t>(a.y.elements())), log_sum_exp;
    for (std::int64_t b = 0; b < c.shape.B; ++b)
      for (std::int64_t h = 0; h < c.shape.heads.count; ++h)
        for (std::int64_t q = 0; q < c.shape.T; ++q) {
          const std::int64_t at = ((b * c.shape.T + q) * c.shape.heads.count + h) * c.shape.D;
          log_sum_exp.push_back(plain_row(a, qkv, b, h, q, y.data() + at));
        }
    // f64 all the way, sums in another order.
    CHECK(relative_error(a.y, y) < 1e-13);
    CHECK(relative_error(a.log_sum_exp, log_sum_exp) < 1e-13);
  }
}

TEST_CASE("attention_forward: large scores neither overflow nor vanish")
{
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    Laboratory lab(family.make());
    Attention a(lab, DType::f32, {{1, 4, {0, 1}, 8, causal}});
    // scores of some hundreds; exp(89) is more than an f32 holds
    a.qkv = lab.filled(DType::f32, a.qkv.shape(), 1, 60);
    a.forward();
    CHECK_FALSE(lab.kernels()->first_not_finite(a.y));
    CHECK_FALSE(lab.kernels()->first_not_finite(a.log_sum_exp));
  }
}

TEST_CASE("attention_backward: overwrites the output with the gradient that central differences give")
{
  for (const Case& c : cases) {
    INFO(text_of(c));
    Laboratory lab;
    const Attention a(lab, DType::f64, c);
    const std::vector<double> expected = central_differences(a.qkv, [&] {
      a.forward();
      return inner_product(a.dy, a.y);
    });
    a.forward();
    a.backward();
    CHECK(relative_error(a.dqkv, expected) < difference_tolerance);

    // q and k by themselves: their gradients are smaller than those of v, and an error must not drown in them
    const std::size_t width = expected.size() / static_cast<std::size_t>(3 * c.shape.B * c.shape.T);
    const std::vector<double> gradient = values_of(a.dqkv);
    std::vector<double> found, wanted;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (i / width % 3 == 2) continue;
      found.push_back(gradient[i]);
      wanted.push_back(expected[i]);
    }
    // One visible key: soft-max is 1 whatever q and k are, and the differences are pure rounding.
    if (c.shape.T > 1) CHECK(relative_error(found, wanted) < difference_tolerance);
  }
}

TEST_CASE("attention: the heads of a tensor-parallel shard have the same bits as in the whole layer")
{
  constexpr std::int64_t B = 2, T = 7, H = 4, D = 12, n = 2;
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    Laboratory lab(family.make());
    const Attention whole(lab, DType::f32, {{B, T, {0, H}, D, causal}, 0.2});
    whole.forward();
    whole.backward();
    const auto columns = [&](const Tensor& from, std::int64_t sections, Range heads) {
      const Tensor part = lab.zeros(DType::f32, {B * T, sections * heads.count * D});
      for (std::int64_t r = 0; r < B * T; ++r)
        for (std::int64_t s = 0; s < sections; ++s)
          lab.stream().copy(part.slice({(r * sections + s) * heads.count * D, heads.count * D}),
                            from.slice({((r * sections + s) * H + heads.first) * D, heads.count * D}));
      return part;
    };
    for (std::int64_t part = 0; part < n; ++part) {
      const Range heads{part * H / n, H / n};
      Attention divided(lab, DType::f32, {{B, T, heads, D, causal}, 0.2});
      divided.qkv = columns(whole.qkv, 3, heads);
      divided.dy = columns(whole.dy, 1, heads);
      divided.forward();
      divided.backward();
      CHECK(different_bits(divided.y, columns(whole.y, 1, heads)) == 0);
      CHECK(different_bits(divided.dqkv, columns(whole.dqkv, 3, heads)) == 0);
    }
  }
}

TEST_CASE("attention: bf16 gives f32's results, rounded")
{
  for (const Case& c : cases) {
    INFO(text_of(c));
    Laboratory lab;
    const Attention stored(lab, DType::bf16, c);
    Attention exact(lab, DType::f32, c);
    exact.qkv = lab.converted(stored.qkv, DType::f32);
    exact.dy = lab.converted(stored.dy, DType::f32);
    stored.forward();
    exact.forward();
    CHECK(relative_error(stored.y, exact.y) < bf16_rounding);  // computed in f32, rounded once
    CHECK(relative_error(stored.log_sum_exp, exact.log_sum_exp) == 0);
    stored.backward();
    exact.backward();
    // Rounded once; and dy . y, which is taken from every score, has the rounding of y, as large as the scores.
    CHECK(relative_error(stored.dqkv, exact.dqkv) < 2 * bf16_rounding);
  }
}

TEST_CASE("attention: too many or too few lengths are refused")
{
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    Laboratory lab(family.make());
    Attention a(lab, DType::f32, {{2, 4, {0, 1}, 8, full}, 0, {4, 3}});
    CHECK_NOTHROW(a.forward());
    CHECK_NOTHROW(a.backward());
    for (const std::int64_t count : {1, 3}) {
      a.shape.lengths = lab.integers(count, [](std::int64_t) { return 2; });
      CHECK_THROWS_AS(a.forward(), Error);
      CHECK_THROWS_AS(a.backward(), Error);
    }
  }
}

namespace {

/// The rows of a run of tokens of each sequence, and of their columns those from @p first on.
Tensor run_of(Laboratory& lab, const Tensor& rows, const AttentionShape& shape, Range run, std::int64_t first,
              std::int64_t columns)
{
  const std::int64_t all = rows.elements() / (shape.B * shape.T);
  const Tensor mine = lab.zeros(rows.type(), {shape.B * run.count, columns});
  for (std::int64_t b = 0; b < shape.B; ++b)
    for (std::int64_t t = 0; t < run.count; ++t)
      lab.stream().copy(mine.slice({(b * run.count + t) * columns, columns}),
                        rows.slice({(b * shape.T + run.first + t) * all + first, columns}));
  return mine;
}

SoftmaxPartial make_partial(Laboratory& lab, const AttentionShape& shape, DType type, Range queries)
{
  // Not zero at first: every element is overwritten.
  return {lab.filled(type, {shape.B, shape.heads.count, queries.count}, 21),
          lab.filled(type, {shape.B, shape.heads.count, queries.count}, 22),
          lab.filled(type, {shape.B * queries.count, shape.heads.count * shape.D}, 23)};
}

/// One attention layer, computed run by run: the queries of run i with the keys of run j, for all i and j, merged in the
/// tree of the whole.
struct AttentionInRuns {
  AttentionInRuns(const Attention& of, std::int64_t count)
      : whole(of),
        lab(of.lab),
        shape(of.shape),
        n(count),
        width(shape.heads.count * shape.D),
        sums(accumulator_of(of.qkv.type()))
  {
    for (std::int64_t i = 0; i < n; ++i) {
      runs.push_back(Partition(shape.T, n).shard(i));
      qkv.push_back(run_of(lab, of.qkv, shape, runs.back(), 0, 3 * width));
      kv.push_back(run_of(lab, of.qkv, shape, runs.back(), width, 2 * width));
      dy.push_back(run_of(lab, of.dy, shape, runs.back(), 0, width));
    }
  }
  Dropout dropout_of(const Range& queries) const
  {
    Dropout dropout = whole.dropout;
    dropout.rows.tokens = queries;
    return dropout;
  }
  void check_forward(double tolerance)
  {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Range queries = runs[i];
      std::vector<SoftmaxPartial> places(static_cast<std::size_t>(tree_places(n)));
      tree_in_places(
          n,
          [&](std::int64_t place, std::int64_t j) {
            const auto key = static_cast<std::size_t>(j);
            SoftmaxPartial& to = places[static_cast<std::size_t>(place)] = make_partial(lab, shape, sums, queries);
            lab.kernels()->attention_partial(to, qkv[i], kv[key], shape, {queries, runs[key]}, dropout_of(queries));
          },
          [&](std::int64_t place) {
            const auto at = static_cast<std::size_t>(place);
            lab.kernels()->attention_merge(places[at], places[at + 1]);
          });
      y.push_back(lab.zeros(whole.y.type(), {shape.B * queries.count, width}));
      log_sum_exp.push_back(lab.zeros(sums, {shape.B, shape.heads.count, queries.count}));
      lab.kernels()->attention_divide(y.back(), log_sum_exp.back(), places[0]);
      compare(y.back(), run_of(lab, whole.y, shape, queries, 0, width), tolerance);
    }
  }
  void check_backward(double tolerance)
  {
    std::vector<std::vector<Tensor>> dq(runs.size()), dkv(runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i)
      for (std::size_t j = 0; j < runs.size(); ++j) {
        dq[i].push_back(lab.filled(sums, {shape.B * runs[i].count, width}, 24));
        dkv[j].push_back(lab.filled(sums, {shape.B * runs[j].count, 2 * width}, 25));
        lab.kernels()->attention_partial_backward(dq[i].back(), dkv[j].back(), dy[i], y[i], log_sum_exp[i], qkv[i],
                                                  kv[j], shape, {runs[i], runs[j]}, dropout_of(runs[i]));
      }
    const auto sum = [&](const std::vector<Tensor>& parts) {
      std::vector<Tensor> places(static_cast<std::size_t>(tree_places(n)));
      tree_in_places(
          n,
          [&](std::int64_t place, std::int64_t i) {
            places[static_cast<std::size_t>(place)] = parts[static_cast<std::size_t>(i)];
          },
          [&](std::int64_t place) {
            const auto at = static_cast<std::size_t>(place);
            lab.kernels()->add(places[at], places[at + 1]);
          });
      return places[0];
    };
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::int64_t R = shape.B * runs[i].count;
      const Tensor dqkv = lab.zeros(whole.dqkv.type(), {R, 3 * width}), from_queries = sum(dq[i]),
                   from_keys = sum(dkv[i]);
      lab.kernels()->copy({dqkv, R, width, 3 * width, 1}, Matrix::of(from_queries, R));
      lab.kernels()->copy({dqkv.slice({width, dqkv.elements() - width}), R, 2 * width, 3 * width, 1},
                          Matrix::of(from_keys, R));
      compare(dqkv, run_of(lab, whole.dqkv, shape, runs[i], 0, 3 * width), tolerance);
    }
  }
  static void compare(const Tensor& found, const Tensor& expected, double tolerance)
  {
    if (tolerance == 0)
      CHECK(different_bits(found, expected) == 0);
    else
      CHECK(relative_error(found, expected) < tolerance);
  }

  const Attention& whole;
  Laboratory& lab;
  AttentionShape shape;
  std::int64_t n, width;
  DType sums;
  std::vector<Range> runs;
  std::vector<Tensor> qkv, kv, dy, y, log_sum_exp;
};

const std::vector<Case> divisible_cases{{{1, 16, {0, 1}, 8, causal}},
                                        {{2, 32, {0, 2}, 20, causal}},
                                        {{2, 48, {2, 2}, 8, causal}, 0.3},
                                        {{1, 32, {1, 1}, 36, prefix(5)}, 0.25},
                                        {{2, 32, {0, 2}, 8, full}, 0.2, {17, 3}}};

}  // namespace

TEST_CASE("attention between runs of tokens: aligned runs merge into the bits of the whole layer")
{
  for (const OrderedFamily& family : ordered_families())
    for (const Case& c : divisible_cases)
      for (const DType type : {DType::f32, DType::bf16})
        for (const std::int64_t runs : {1, 2, 4, 8, 16}) {
          INFO(family.name << ", " << text_of(c) << ", " << runs << " runs");
          Laboratory lab(family.make());
          const Attention whole(lab, type, c);
          whole.forward();
          whole.backward();
          AttentionInRuns divided(whole, runs);
          divided.check_forward(0);
          divided.check_backward(0);
        }
}

TEST_CASE("attention between runs of tokens: any division gives the numbers of the whole layer")
{
  for (const Case& c : cases)
    for (std::int64_t runs = 1; runs <= std::min<std::int64_t>(c.shape.T, 3); ++runs) {
      INFO(text_of(c) << ", " << runs << " runs");
      Laboratory lab;
      const Attention whole(lab, DType::f64, c);
      whole.forward();
      whole.backward();
      AttentionInRuns divided(whole, runs);
      divided.check_forward(1e-13);
      divided.check_backward(1e-13);
    }
}
