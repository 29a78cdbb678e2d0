#include <cmath>
#include <limits>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// R rows of logits over one shard of a vocabulary of V entries, followed by padding of NaNs, which no kernel may read.
struct Case {
  std::int64_t R, V;
  Range entries;        // of this part
  std::int64_t stored;  // columns, with padding
  Values logits;

  Shape shape() const { return {R, stored}; }
  SumOrder order() const { return SumOrder::split(stored, 8); }
};

// Where the compiler makes no vector code, as under sanitizers, 50257 terms are added one by one: 6e-8 sqrt(50257).
constexpr Tolerance long_sum{5, 6e-8 * 224};

/// A vocabulary that is whole, padded to a multiple of 8.
Case whole(std::int64_t R, std::int64_t V, const Values& logits)
{
  return {R, V, {0, V}, (V + 7) / 8 * 8, logits};
}

/// The first entry, the last, nothing, and others.
std::int64_t target_of(const Case& c, std::int64_t r)
{
  const std::int64_t targets[] = {0, c.V - 1, -1, 25131 % c.V, c.V / 2, -1};
  return targets[r % 6];
}

Tensor targets_of(Data& data, const Case& c)
{
  return data.integers(c.R, [&](std::int64_t r) { return target_of(c, r); });
}

/// The logits, with NaN for padding.
Values padded(const Case& c)
{
  return [=](std::int64_t i) {
    return i % c.stored < c.entries.count ? c.logits(i) : std::numeric_limits<double>::quiet_NaN();
  };
}

/// Maximum, sum and the target's logit; by one call or by two.
Computation statistics(const Case& c, bool at_once)
{
  return [=](Data& data, const Kernels& kernels) {
    const Tensor maximum = data.output({c.R}, Role::sum), sum = data.output({c.R}, Role::sum);
    const Tensor target_logit = data.output({c.R}, Role::sum);
    const Tensor logits = data.input(c.shape(), padded(c)), targets = targets_of(data, c);
    if (at_once) {
      kernels->row_statistics(maximum, sum, target_logit, logits, targets, c.entries, c.order());
    } else {
      kernels->row_maximum(maximum, logits, c.entries.count);
      kernels->row_sum(sum, target_logit, logits, maximum, targets, c.entries, c.order());
    }
    return std::vector<Output>{{"maximum", maximum, 1}, {"sum", sum, 1}, {"target_logit", target_logit, 1}};
  };
}

/// The exact loss of each row, in f64.
class Statistics {
 public:
  explicit Statistics(const Case& c) : R_(c.R), truth_(statistics(c, false)) {}
  Tensor maximum(Data& data) { return data.input({R_}, truth_(data, 0), Role::sum); }
  Tensor sum(Data& data) { return data.input({R_}, truth_(data, 1), Role::sum); }
  Tensor target_logit(Data& data) { return data.input({R_}, truth_(data, 2), Role::sum); }

 private:
  std::int64_t R_;
  Truth truth_;
};

Computation loss(const Case& c)
{
  return [c, s = Statistics(c)](Data& data, const Kernels& kernels) mutable {
    const ExactScalar nats =
        kernels->loss_sum(s.sum(data), s.maximum(data), s.target_logit(data), targets_of(data, c));
    return std::vector<Output>{{"loss", data.scalar(nats.value()), 1}};
  };
}

/// The gradient; and all of it but the targets' own columns, beside which the others are small.
Computation backward(const Case& c, double weight = 1)
{
  return [c, weight, s = Statistics(c)](Data& data, const Kernels& kernels) mutable {
    const Tensor logits = data.updated(c.shape(), padded(c));
    kernels->loss_backward(logits, s.maximum(data), s.sum(data), targets_of(data, c), c.entries, weight);
    const Tensor others = data.output(c.shape());
    host_stream().copy(others, logits);
    for (std::int64_t r = 0; r < c.R; ++r)
      if (c.entries.contains(target_of(c, r)))
        assign(others.slice({r * c.stored + target_of(c, r) - c.entries.first, 1}), std::vector<double>{0});
    return std::vector<Output>{{"dlogits", logits, c.stored}, {"dlogits of other columns", others, c.stored}};
  };
}

/// Elements of the gradient that must be zero and are not: padding, and rows that are not counted.
std::int64_t not_zero(const Case& c, const Types& types, const Kernels& kernels)
{
  Data data(types);
  const std::vector<double> gradient = values_of(backward(c)(data, kernels).front().values);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < c.R * c.stored; ++i)
    if (i % c.stored >= c.entries.count || target_of(c, i / c.stored) < 0)
      count += gradient[static_cast<std::size_t>(i)] != 0 ? 1 : 0;
  return count;
}

void check_all(const Case& c, Tolerance tolerance = {})
{
  INFO(c.R << " rows, entries " << c.entries.first << " + " << c.entries.count << " of " << c.V << ", stored "
           << c.stored);
  for (const bool at_once : {false, true}) check_against_reference(statistics(c, at_once), tolerance);
  check_against_reference(backward(c), tolerance);
  for (const Types& types : {all_f32, mixed})
    for_each_family(types, [&](const Kernels& kernels) { CHECK(not_zero(c, types, kernels) == 0); });
  if (c.entries.count == c.V) check_against_reference(loss(c), tolerance);
}

}  // namespace

TEST_CASE("every loss: is the reference's for vocabularies of all sizes, padded and not")
{
  for (const std::int64_t V : {1, 5, 8, 11, 63, 64, 65, 251})
    for (const std::int64_t R : {1, 6, 33}) check_all(whole(R, V, numbers(1, 4)));
}

TEST_CASE("every loss_backward: is the reference's with a weight, and half of the gradient with half the weight")
{
  for (const std::int64_t V : {5, 11, 251}) {
    const Case c = whole(33, V, numbers(1, 4));
    for (const double weight : {0.3, 7.0}) check_against_reference(backward(c, weight));
    // Halving is exact in every step.
    const auto check_half = [&](const Types& types, const Kernels& kernels) {
      Data data(types);
      std::vector<double> half = values_of(backward(c, 0.5)(data, kernels)[0].values);
      for (double& value : half) value *= 2;
      CHECK(half == values_of(backward(c)(data, kernels)[0].values));
    };
    for (const Types& types : {all_f32, mixed})
      for_each_family(types, [&](const Kernels& kernels) { check_half(types, kernels); });
  }
}

TEST_CASE("every loss: is the reference's for 50257 entries padded to 50264")
{
  check_all(whole(6, 50257, numbers(1, 4)), long_sum);
}

TEST_CASE("every loss: is the reference's for parts of a vocabulary, the last of which is padded")
{
  constexpr std::int64_t V = 50257, stored = 50264 / 8;
  for (const std::int64_t part : {0, 4, 7})
    check_all({6, V, intersect({part * stored, stored}, {0, V}), stored, numbers(1, 4)}, long_sum);
  for (const Range entries : {Range{0, 6}, Range{6, 5}}) check_all({6, 11, entries, 6, numbers(1, 4)});
}

TEST_CASE("every loss: a part of nothing but padding has the maximum -infinity, the sum 0 and no gradient")
{
  const Case c{6, 11, {12, 0}, 2, numbers(1)};
  const auto check_in = [&](const Types& types, const Kernels& kernels) {
    Data data(types);
    const Tensor maximum = data.output({6}, Role::sum), sum = data.output({6}, Role::sum);
    const Tensor target_logit = data.output({6}, Role::sum), ones = data.input({6}, numbers(1, 0, 1), Role::sum);
    const Tensor logits = data.updated(c.shape(), padded(c));
    kernels->row_maximum(maximum, logits, 0);
    kernels->row_sum(sum, target_logit, logits, ones, targets_of(data, c), c.entries, c.order());
    kernels->loss_backward(logits, ones, ones, targets_of(data, c), c.entries);
    CHECK(values_of(maximum) == std::vector<double>(6, -std::numeric_limits<double>::infinity()));
    CHECK(values_of(sum) == std::vector<double>(6));
    CHECK(values_of(target_logit) == std::vector<double>(6));
    CHECK(values_of(logits) == std::vector<double>(12));
    CHECK(data.damaged() == 0);
  };
  for (const Types& types : {all_f32, mixed})
    for_each_family(types, [&](const Kernels& kernels) { check_in(types, kernels); });
}

TEST_CASE("every loss: logits of 1e4 neither overflow nor vanish")
{
  // log(sum) + maximum is some 1e4: 24 bits leave 6e-4 of it, a few of which are 1e-3 of a loss of some nats a row.
  constexpr Tolerance rounded{5, 1e-3};
  for (const std::int64_t V : {11, 251}) {
    check_all(whole(6, V, numbers(1, 4, 1e4)), rounded);
    check_all(whole(6, V, numbers(1, 4, -1e4)), rounded);
    check_all(whole(6, V, numbers(1, 1e4)), rounded);  // all but one probability are zero
    check_all(whole(6, V, [](std::int64_t i) { return i % 7 == 0 ? 1e4 : -1e4; }), rounded);
  }
}

TEST_CASE("every loss: the gradient of a target that is all but certain is not lost in rounding")
{
  // Its probability is 0.99 and its gradient -0.01: a probability that is rounded to bf16 first would leave 2^-9 of 1.
  Case c = whole(6, 11, numbers(1));
  c.logits = [c](std::int64_t i) { return number(i, 1) + (i % c.stored == target_of(c, i / c.stored) ? 7 : 0); };
  check_all(c);
}

TEST_CASE("every loss: equal logits of any size give log V a row")
{
  for (const std::int64_t V : {11, 5003})
    for (const double value : {0.0, 1e4, -1e4}) {
      INFO("value " << value);
      check_all(whole(3, V, [=](std::int64_t) { return value; }), {5, value == 0 ? 2e-6 : 1e-3});
    }
}

TEST_CASE("every row_maximum: finds the largest logit wherever it stands")
{
  constexpr std::int64_t V = 77, stored = 80;
  const auto check_in = [&](const Types& types, const Kernels& kernels) {
    for (std::int64_t at = 0; at < V; ++at) {
      Data data(types);
      const Tensor maximum = data.output({1}, Role::sum), sum = data.output({1}, Role::sum);
      const Tensor target_logit = data.output({1}, Role::sum);
      const Case c =
          whole(1, V, [=](std::int64_t i) { return i == at ? -1.0 : -2.0 - static_cast<double>(i % 3); });
      REQUIRE(c.stored == stored);
      const Tensor logits = data.input(c.shape(), padded(c));
      kernels->row_maximum(maximum, logits, V);
      CHECK(maximum.data<float>()[0] == -1);
      kernels->row_statistics(maximum, sum, target_logit, logits, targets_of(data, c), c.entries, c.order());
      CHECK(maximum.data<float>()[0] == -1);
    }
  };
  for (const Types& types : {all_f32, mixed})
    for_each_family(types, [&](const Kernels& kernels) { check_in(types, kernels); });
}
