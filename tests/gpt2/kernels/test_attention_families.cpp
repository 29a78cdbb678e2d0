#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

struct Case {
  AttentionShape shape;
  double dropout_rate = 0;
  double slope = 0;                        ///< how much each channel of a key grows from one token to the next
  std::vector<std::int64_t> lengths = {};  ///< of each sequence; empty: all T
  double garbage = 0;                      ///< what is added to all numbers of padding

  /// Whether token i of the batch is padding.
  bool is_padding(std::int64_t i) const
  {
    return !lengths.empty() && i % shape.T >= lengths.at(static_cast<std::size_t>(i / shape.T));
  }
};

/// The shape with its lengths.
AttentionShape shape_of(Data& data, const Case& c)
{
  AttentionShape shape = c.shape;
  if (!c.lengths.empty())
    shape.lengths =
        data.integers(shape.B, [&](std::int64_t b) { return c.lengths.at(static_cast<std::size_t>(b)); });
  return shape;
}

/// Queries, keys and values. With a slope, queries are positive, so that scores grow or fall from key to key.
Values qkv_of(const Case& c)
{
  const std::int64_t T = c.shape.T, width = c.shape.heads.count * c.shape.D;
  return [=, slope = c.slope](std::int64_t i) {
    const std::int64_t t = i / (3 * width) % T, section = i % (3 * width) / width;
    const double value = 1.5 * number(i, 1) + (c.is_padding(i / (3 * width)) ? c.garbage : 0);
    if (slope == 0 || section == 2) return value;
    return section == 0 ? 1 + value / 3 : value + slope * static_cast<double>(t);
  };
}

Dropout dropout_of(const Case& c)
{
  return {c.dropout_rate, 5, 2, 3, Purpose::attention_dropout, {{6, c.shape.B}, {0, c.shape.T}}};
}

Computation forward(const Case& c)
{
  return [c](Data& data, const Kernels& kernels) {
    const AttentionShape s = shape_of(data, c);
    const Tensor y = data.output({s.B * s.T, s.heads.count * s.D});
    const Tensor log_sum_exp = data.output({s.B, s.heads.count, s.T}, Role::sum);
    const Tensor qkv = data.input({s.B * s.T, 3 * s.heads.count * s.D}, qkv_of(c));
    kernels->attention_forward(y, log_sum_exp, qkv, s, dropout_of(c));
    return std::vector<Output>{{"y", y, s.D}, {"log_sum_exp", log_sum_exp, 1}};
  };
}

/// Some tokens of one sequence, behind those whose keys and values are cached; the cache has two rows more than it needs.
Computation cached_forward(Range heads, std::int64_t D, Range tokens)
{
  return [=](Data& data, const Kernels& kernels) {
    const AttentionShape s{1, tokens.count, heads, D, {}};
    const std::int64_t width = heads.count * D;
    const Tensor y = data.output({tokens.count, width});
    const Tensor cache = data.updated({tokens.end() + 2, 2 * width}, numbers(2, 1.5));
    kernels->cached_attention_forward(y, cache, data.input({tokens.count, 3 * width}, numbers(1, 1.5)), s, tokens);
    return std::vector<Output>{{"y", y, D}, {"cache", cache, D}};
  };
}

/// The gradients of queries and keys alone: they are smaller than those of values, and an error must not drown in them.
Tensor without_values(Data& data, const Tensor& dqkv, const AttentionShape& s)
{
  const std::int64_t R = s.B * s.T, width = s.heads.count * s.D;
  const Tensor kept = data.output({R, 2 * width});
  for (std::int64_t r = 0; r < R; ++r)
    host_stream().copy(kept.slice({r * 2 * width, 2 * width}), dqkv.slice({r * 3 * width, 2 * width}));
  return kept;
}

/// The gradients of outputs: zero in padding, as where no loss reads it.
Values dy_of(const Case& c)
{
  const std::int64_t width = c.shape.heads.count * c.shape.D;
  return [=](std::int64_t i) { return c.is_padding(i / width) ? 0 : 0.1 + number(i, 2); };
}

/// The backward pass from the y and log_sum_exp that the truth has.
Computation backward(const Case& c)
{
  return [c, truth = Truth(forward(c))](Data& data, const Kernels& kernels) mutable {
    const AttentionShape s = shape_of(data, c);
    const Shape inner{s.B * s.T, 3 * s.heads.count * s.D}, outer{s.B * s.T, s.heads.count * s.D};
    const Tensor dqkv = data.output(inner);
    kernels->attention_backward(dqkv, data.input(outer, dy_of(c)), data.input(outer, truth(data, 0)),
                                data.input({s.B, s.heads.count, s.T}, truth(data, 1), Role::sum),
                                data.input(inner, qkv_of(c)), s, dropout_of(c));
    std::vector<Output> outputs{{"dqkv", dqkv, s.D}};
    // Where one weight is all but 1, whatever queries and keys are, their gradients are pure rounding; in bf16 sooner.
    const double steepest = data.types().activation == DType::bf16 ? 0.1 : 1;
    if (s.T > 1 && std::abs(c.slope) < steepest)
      outputs.push_back({"dq and dk", without_values(data, dqkv, s), s.D});
    return outputs;
  };
}

/// The gradients of a query's scores add up to zero; rounded to bf16 they do not, and what is left is multiplied by what
/// all keys have in common: slope T.
Tolerance backward_tolerance(const Case& c)
{
  const bool one_weight_is_all = std::abs(c.slope) >= 1;
  Tolerance tolerance;
  if (!one_weight_is_all) tolerance.bf16_floor *= std::max(1.0, std::abs(c.slope) * static_cast<double>(c.shape.T));
  return tolerance;
}

void check_both(const Case& c)
{
  INFO("B " << c.shape.B << ", T " << c.shape.T << ", heads " << c.shape.heads.first << " + " << c.shape.heads.count
            << ", D " << c.shape.D << ", " << c.shape.mask.text() << ", dropout " << c.dropout_rate << ", slope "
            << c.slope << (c.lengths.empty() ? "" : ", with padding"));
  check_against_reference(forward(c));
  check_against_reference(backward(c), backward_tolerance(c));
}

/// Of a (B T, sections W) matrix with one row a token, sections [first, first + count) of the tokens of a run.
Values in_run(const Case& c, const Values& all, std::int64_t sections, Range run, std::int64_t first,
              std::int64_t count)
{
  const std::int64_t T = c.shape.T, width = c.shape.heads.count * c.shape.D;
  return [=](std::int64_t i) {
    const std::int64_t row = i / (count * width), token = row / run.count * T + run.first + row % run.count;
    return all((token * sections + first) * width + i % (count * width));
  };
}

/// The mask of dropout for the queries of a run.
Dropout dropout_of(const Case& c, Range queries)
{
  Dropout dropout = dropout_of(c);
  dropout.rows.tokens = queries;
  return dropout;
}

/// A run of queries and several runs of keys: the soft-max over those of each run, and over all of them, merged one
/// after the other.
Computation forward_in_runs(const Case& c, Range queries, const std::vector<Range>& keys)
{
  return [=](Data& data, const Kernels& kernels) {
    const AttentionShape s = shape_of(data, c);
    const std::int64_t width = s.heads.count * s.D, rows = s.B * queries.count;
    const Shape statistics{s.B, s.heads.count, queries.count};
    const Tensor qkv = data.input({rows, 3 * width}, in_run(c, qkv_of(c), 3, queries, 0, 3));
    std::vector<Output> outputs;
    std::vector<SoftmaxPartial> partials;
    for (const Range& run : keys) {
      partials.push_back({data.output(statistics, Role::sum), data.output(statistics, Role::sum),
                          data.output({rows, width}, Role::sum)});
      const Tensor kv = data.input({s.B * run.count, 2 * width}, in_run(c, qkv_of(c), 3, run, 1, 2));
      kernels->attention_partial(partials.back(), qkv, kv, s, {queries, run}, dropout_of(c, queries));
      outputs.push_back({"output", data.copy(partials.back().output), s.D});
      outputs.push_back({"sum", data.copy(partials.back().sum), 1});
    }
    for (std::size_t i = 1; i < partials.size(); ++i) kernels->attention_merge(partials[0], partials[i]);
    const Tensor y = data.output({rows, width}), log_sum_exp = data.output(statistics, Role::sum);
    kernels->attention_divide(y, log_sum_exp, partials[0]);
    outputs.push_back({"log_sum_exp", log_sum_exp, 1});
    outputs.push_back({"y", y, s.D});
    return outputs;
  };
}

/// The gradients that a run of queries and each of several runs of keys give each other, from the y and log_sum_exp
/// that the truth has.
Computation backward_in_runs(const Case& c, Range queries, const std::vector<Range>& keys)
{
  return [=, truth = Truth(forward_in_runs(c, queries, keys))](Data& data, const Kernels& kernels) mutable {
    const AttentionShape s = shape_of(data, c);
    const std::int64_t width = s.heads.count * s.D, rows = s.B * queries.count;
    const std::size_t y = 2 * keys.size() + 1;
    const Tensor qkv = data.input({rows, 3 * width}, in_run(c, qkv_of(c), 3, queries, 0, 3));
    std::vector<Output> outputs;
    for (const Range& run : keys) {
      const Tensor dq = data.output({rows, width}, Role::sum);
      const Tensor dkv = data.output({s.B * run.count, 2 * width}, Role::sum);
      kernels->attention_partial_backward(
          dq, dkv, data.input({rows, width}, in_run(c, dy_of(c), 1, queries, 0, 1)),
          data.input({rows, width}, truth(data, y)),
          data.input({s.B, s.heads.count, queries.count}, truth(data, y - 1), Role::sum), qkv,
          data.input({s.B * run.count, 2 * width}, in_run(c, qkv_of(c), 3, run, 1, 2)), s, {queries, run},
          dropout_of(c, queries));
      outputs.push_back({"dq", dq, s.D});
      outputs.push_back({"dkv", dkv, s.D});
    }
    return outputs;
  };
}

// A block of queries or keys may be 16, 32, 64 or 128 tokens: one token, one less and one more than a block, several.
constexpr std::int64_t tokens[] = {1, 7, 63, 64, 65, 129, 150};
// All masks; prefixes that end in the middle of a block, at the border of one or behind the last token.
constexpr Mask masks[] = {
    {}, {Mask::Kind::prefix, 40}, {Mask::Kind::prefix, 128}, {Mask::Kind::prefix, 1000}, {Mask::Kind::full, 0}};

/// Lengths of three sequences of T tokens: one token, the middle, and one of the lengths where blocks begin and end.
std::vector<std::int64_t> three_lengths(std::int64_t T)
{
  std::vector<std::int64_t> lengths{1, (T + 1) / 2, T};
  for (const std::int64_t border : {16, 33, 63, 64, 127, 128})
    if (border < T) lengths.back() = border;
  return lengths;
}

/// The elements of the rows of (R, width) that are padding, or of those that are none.
std::vector<double> rows_of(const Case& c, const Tensor& x, bool padding)
{
  std::vector<double> kept;
  const std::vector<double> all = values_of(x);
  const std::int64_t width = x.elements() / (c.shape.B * c.shape.T);
  for (std::int64_t i = 0; i < x.elements(); ++i)
    if (c.is_padding(i / width) == padding) kept.push_back(all[static_cast<std::size_t>(i)]);
  return kept;
}

}  // namespace

TEST_CASE("every attention: is the reference's for every T and mask, with and without dropout")
{
  // The rest goes round: the lists are of different lengths, so that everything meets everything else; only long sequences
  // have few channels.
  constexpr std::int64_t channels[] = {8, 16, 20, 32, 64, 80, 128};
  constexpr Range heads[] = {{0, 1}, {0, 2}, {3, 2}, {5, 1}};
  constexpr double rates[] = {0, 0.1, 0.5};
  std::size_t i = 0;
  for (const std::int64_t T : tokens)
    for (const Mask& mask : masks) {
      const std::int64_t B = T > 64 ? 1 : 1 + static_cast<std::int64_t>(i % 2);
      check_both({{B, T, heads[i % 4], channels[i % (T > 10 ? 4 : 7)], mask}, rates[i % 3]});
      ++i;
    }
}

TEST_CASE("every attention: is the reference's for every D, at a T that no block divides")
{
  std::size_t i = 0;
  for (const std::int64_t D : {1, 5, 8, 12, 16, 20, 48, 64, 80, 96, 128, 160})
    check_both({{1, 101, {1, 1}, D, masks[i++ % 5]}, i % 2 == 0 ? 0 : 0.2});
}

TEST_CASE("every attention: is the reference's where queries come in segments that end within four rows")
{
  for (const Mask& mask : {masks[0], masks[4]}) check_both({{1, 258, {0, 1}, 8, mask}, 0.1});
}

TEST_CASE("exact attention: a sum of products that vanish from below is 0, not -0")
{
  constexpr std::int64_t T = 40, D = 16;
  const AttentionShape shape{.B = 1, .T = T, .heads = {0, 1}, .D = D};
  for (const bool exact : {false, true}) {
    Laboratory lab(exact ? make_exact_kernels() : make_reference_kernels());
    const Tensor qkv = lab.zeros(DType::f32, {T, 3 * D}), y = lab.zeros(DType::f32, {T, D}),
                 sums = lab.zeros(DType::f32, {1, 1, T});
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t d = 0; d < D; ++d) {
        float* const row = qkv.data<float>() + t * 3 * D + d;
        row[0] = 1, row[D] = t == 1 ? 1.0F : 0.0F;  // query and key: the second key has almost all the weight
        row[2 * D] = t == 0 ? -1e-45F : t == 1 ? -0.0F : -1.0F;
      }
    lab.kernels()->attention_forward(y, sums, qkv, shape, {});
    CHECK_FALSE(std::signbit(y.data<float>()[D]));  // of the second query: -1e-45 e^-4 rounds to -0
  }
}

TEST_CASE("every attention between runs of tokens: is the reference's, also where a run hides some keys or all")
{
  struct Division {
    std::int64_t T;
    Range queries;
    std::vector<Range> keys;
  };
  const std::vector<Division> divisions{
      {1, {0, 1}, {{0, 1}}},                                  // the whole sequence
      {20, {5, 5}, {{0, 5}, {5, 5}, {10, 5}, {15, 5}}},       // keys that no query sees
      {150, {0, 75}, {{0, 75}, {75, 75}}},                    // several blocks
      {150, {75, 75}, {{0, 75}, {75, 75}}},                   // all keys of a run and some of one
      {390, {130, 130}, {{130, 130}, {0, 130}, {260, 130}}},  // in another order; more than a block of keys
      {64, {48, 16}, {{0, 16}, {16, 16}, {32, 16}, {48, 16}}}};
  constexpr std::int64_t channels[] = {8, 16, 20, 32};
  std::size_t i = 0;
  for (const Division& division : divisions)
    for (const Mask& mask : {masks[0], masks[1], masks[4]}) {
      const std::int64_t T = division.T;
      Case c{{T > 64 ? 1 : 2, T, {1, 2}, channels[i % 4], mask}, i % 2 == 0 ? 0 : 0.3};
      if (mask.kind == Mask::Kind::full && T == 20) c.lengths = {20, 7};
      INFO("T " << T << ", queries " << division.queries.first << " + " << division.queries.count << ", "
                << mask.text());
      Tolerance tolerance;
      tolerance.sums_floor = tolerance.factor * bf16_rounding;  // weights and gradients of scores are rounded
      check_against_reference(forward_in_runs(c, division.queries, division.keys), tolerance);
      check_against_reference(backward_in_runs(c, division.queries, division.keys), tolerance);
      ++i;
    }
}

TEST_CASE("every attention: scores that grow or fall by hundreds from block to block neither overflow nor vanish")
{
  for (const double slope : {0.5, -0.5, 5.0, -5.0})
    for (const Mask& mask : {Mask{}, Mask{Mask::Kind::full, 0}}) check_both({{1, 130, {0, 1}, 16, mask}, 0, slope});
}

TEST_CASE("every attention: the heads of a tensor-parallel shard are those of the whole layer")
{
  // Only dropout knows which head it is; without its number, parts would drop the same weights.
  const Case first{{1, 65, {0, 2}, 8, {}}, 0.3}, second{{1, 65, {2, 2}, 8, {}}, 0.3};
  for_each_family([&](const Kernels& kernels) {
    Data a, b;
    const Tensor y = forward(first)(a, kernels)[0].values, other = forward(second)(b, kernels)[0].values;
    CHECK(different_bits(y, other) > 0);
  });
  check_both(first);
  check_both(second);
}

TEST_CASE("every cached_attention: is the reference's for the first token, for many and for later ones")
{
  constexpr Range all_heads[] = {{0, 1}, {0, 3}, {3, 2}};
  std::size_t i = 0;
  for (const std::int64_t D : {1, 20, 64, 80})
    for (const Range rows : {Range{0, 1}, {0, 65}, {1, 1}, {63, 1}, {63, 3}, {64, 1}, {130, 1}, {17, 70}}) {
      const Range heads = all_heads[i++ % 3];
      INFO("D " << D << ", heads " << heads.first << " + " << heads.count << ", tokens " << rows.first << " + "
                << rows.count);
      check_against_reference(cached_forward(heads, D, rows));
    }
}

TEST_CASE("every cached_attention: a cache that is too short is refused")
{
  for_each_family([](const Kernels& kernels) {
    Data data;
    const Tensor y = data.output({2, 8}), cache = data.updated({5, 16}, numbers(1));
    const Tensor qkv = data.input({2, 24}, numbers(2));
    const AttentionShape shape{1, 2, {0, 1}, 8, {}};
    CHECK_NOTHROW(kernels->cached_attention_forward(y, cache, qkv, shape, {3, 2}));
    CHECK_THROWS_AS(kernels->cached_attention_forward(y, cache, qkv, shape, {4, 2}), Error);
  });
}

TEST_CASE("every attention: is the reference's for sequences with padding, for every T and mask")
{
  constexpr std::int64_t channels[] = {8, 16, 20, 32, 72};
  std::size_t i = 0;
  for (const std::int64_t T : tokens)
    for (const Mask& mask : {masks[0], masks[1], masks[4]}) {
      check_both({{3, T, {1, 1}, channels[i % (T > 64 ? 3 : 5)], mask}, i % 2 == 0 ? 0 : 0.3, 0, three_lengths(T)});
      ++i;
    }
  check_both({{1, 40, {0, 2}, 160, masks[4]}, 0.2, 0, {9}});
}

TEST_CASE(
    "every attention: keys and values of padding get the gradient zero, and what padding holds changes no bit")
{
  const auto check_in = [](const Types& types, const Kernels& kernels, const Case& c) {
    Case other = c;
    other.garbage = 30;
    Data data(types), changed(types);
    const std::vector<Output> results = forward(c)(data, kernels), same = forward(other)(changed, kernels);
    CHECK(rows_of(c, results[0].values, false) == rows_of(c, same[0].values, false));
    const Tensor dqkv = backward(c)(data, kernels)[0].values, again = backward(other)(changed, kernels)[0].values;
    CHECK(rows_of(c, dqkv, false) == rows_of(c, again, false));
    for (const Tensor& gradient : {dqkv, again}) {
      const std::vector<double> padding = rows_of(c, gradient, true);
      CHECK(padding == std::vector<double>(padding.size()));
    }
  };
  for (const std::int64_t T : {7, 65, 150})
    for (const Mask& mask : {masks[0], masks[4]}) {
      const Case c{{3, T, {1, 1}, 16, mask}, T == 65 ? 0.3 : 0, 0, three_lengths(T)};
      INFO("T " << T << ", " << mask.text());
      check_in(all_f32, make_reference_kernels(), c);
      for (const Types& types : {all_f32, mixed})
        for_each_family(types, [&](const Kernels& kernels) { check_in(types, kernels, c); });
    }
}

TEST_CASE("every attention: with lengths of T it has the bits that it has without lengths")
{
  const auto check_in = [](const Types& types, const Kernels& kernels) {
    for (const std::int64_t T : {7, 130})
      for (const Mask& mask : {masks[0], masks[4]}) {
        const Case without{{2, T, {0, 1}, 20, mask}, 0.2}, with{{2, T, {0, 1}, 20, mask}, 0.2, 0, {T, T}};
        Data a(types), b(types);
        CHECK(different_bits(forward(without)(a, kernels)[0].values, forward(with)(b, kernels)[0].values) == 0);
        CHECK(different_bits(backward(without)(a, kernels)[0].values, backward(with)(b, kernels)[0].values) == 0);
      }
  };
  for (const Types& types : {all_f32, mixed}) {
    check_in(types, make_reference_kernels());
    for_each_family(types, [&](const Kernels& kernels) { check_in(types, kernels); });
  }
}
