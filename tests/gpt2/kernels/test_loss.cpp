#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t R = 10, V = 11, padded = 16;

/// The head's last step, whole: logits of 10 rows over 11 entries and 5 of padding, of which 4 rows are not counted.
struct Loss {
  Loss(Laboratory& laboratory, DType type)
      : lab(laboratory),
        logits(lab.filled(type, {R, padded}, 1, 4)),  // padding too: no kernel may read it
        targets(lab.integers(R, [](std::int64_t r) { return r % 5 < 2 ? -1 : (3 * r + 2) % V; })),
        maximum(lab.zeros(accumulator_of(type), {R})),
        sum(lab.zeros(accumulator_of(type), {R})),
        target_logit(lab.zeros(accumulator_of(type), {R}))
  {
  }
  double forward() const
  {
    lab.kernels()->row_maximum(maximum, logits, V);
    lab.kernels()->row_sum(sum, target_logit, logits, maximum, targets, {0, V}, SumOrder::split(padded, 8));
    return lab.kernels()->loss_sum(sum, maximum, target_logit, targets).value();
  }
  void backward(double weight = 1) const
  {
    lab.kernels()->loss_backward(logits, maximum, sum, targets, {0, V}, weight);
  }

  Laboratory& lab;
  Tensor logits, targets;
  Tensor maximum, sum, target_logit;
};

/// The sum of the cross-entropies of counted rows, straight from its definition.
double plain_loss(const Loss& loss)
{
  const std::vector<double> logits = values_of(loss.logits);
  double total = 0;
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int32_t target = loss.targets.data<std::int32_t>()[r];
    if (target < 0) continue;
    double sum = 0;
    for (std::int64_t v = 0; v < V; ++v) sum += std::exp(logits[static_cast<std::size_t>(r * padded + v)]);
    total -= std::log(std::exp(logits[static_cast<std::size_t>(r * padded + target)]) / sum);
  }
  return total;
}

}  // namespace

TEST_CASE("loss_sum: is the sum of -log softmax over counted targets; padding is ignored")
{
  Laboratory lab;
  const Loss loss(lab, DType::f64);
  const double expected = plain_loss(loss);
  const double found = loss.forward();
  CHECK(found == Approx(expected).epsilon(1e-13));  // f64, another order
  for (std::int64_t r = 0; r < R; ++r)
    for (std::int64_t v = V; v < padded; ++v) loss.logits.data<double>()[r * padded + v] = 1e300;
  CHECK(loss.forward() == found);
}

TEST_CASE("loss_sum: equal logits give log V a token")
{
  Laboratory lab;
  const Loss loss(lab, DType::f64);
  assign(loss.logits, std::vector<double>(R * padded, 2.5));
  CHECK(loss.forward() == Approx(6 * std::log(11.0)).epsilon(1e-14));
}

TEST_CASE("loss_sum: large logits neither overflow nor vanish")
{
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    Laboratory lab(family.make());
    Loss loss(lab, DType::f32);
    loss.logits = lab.filled(DType::f32, {R, padded}, 1, 4, 3000);
    const Loss small(lab, DType::f32);
    // 3000 takes 12 of the 24 bits of each logit: 2.4e-4 is left, in each of 6 rows.
    CHECK(loss.forward() == Approx(small.forward()).margin(6 * 2.4e-4));
    loss.backward();
    CHECK_FALSE(lab.kernels()->first_not_finite(loss.logits));
  }
}

TEST_CASE("loss_backward: with a weight it is the gradient of the weight times the loss")
{
  for (const double weight : {0.25, 3.0, 0.0}) {
    INFO("weight " << weight);
    Laboratory lab;
    const Loss loss(lab, DType::f64);
    const std::vector<double> expected = central_differences(loss.logits, [&] { return weight * loss.forward(); });
    loss.forward();
    loss.backward(weight);
    CHECK(relative_error(loss.logits, expected) < difference_tolerance);
  }
}

TEST_CASE("loss_backward: is the gradient that central differences give, zero in padding and where nothing counts")
{
  Laboratory lab;
  const Loss loss(lab, DType::f64);
  const std::vector<double> expected = central_differences(loss.logits, [&] { return loss.forward(); });
  loss.forward();
  loss.backward();
  // The loss is rounded to 2^-80 (1e-24) a row, which differences do not see either.
  CHECK(relative_error(loss.logits, expected) < difference_tolerance);
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < R; ++r)
    for (std::int64_t v = 0; v < padded; ++v)
      if (v >= V || loss.targets.data<std::int32_t>()[r] < 0)
        wrong += loss.logits.data<double>()[r * padded + v] != 0;
  CHECK(wrong == 0);
}

namespace {

/// Cuts a vocabulary into @p n parts as tensor parallelism does, and holds what they give together against the bits of the
/// whole.
void check_parts(Laboratory& lab, int n)
{
  const Loss whole(lab, DType::f32);
  const std::int64_t stored = padded / n;
  std::vector<Loss> parts;
  std::vector<Range> entries;
  for (int part = 0; part < n; ++part) {
    entries.push_back(intersect({part * stored, stored}, {0, V}));
    parts.emplace_back(lab, DType::f32);
    parts.back().logits = lab.zeros(DType::f32, {R, stored});
    for (std::int64_t r = 0; r < R; ++r)
      lab.stream().copy(parts.back().logits.slice({r * stored, stored}),
                        whole.logits.slice({r * padded + part * stored, stored}));
    lab.kernels()->row_maximum(parts.back().maximum, parts.back().logits, entries.back().count);
  }
  whole.forward();
  for (std::int64_t r = 0; r < R; ++r) {
    float maximum = -std::numeric_limits<float>::infinity();
    for (const Loss& part : parts) maximum = std::max(maximum, part.maximum.data<float>()[r]);
    for (const Loss& part : parts) part.maximum.data<float>()[r] = maximum;
  }
  CHECK(different_bits(parts[0].maximum, whole.maximum) == 0);

  for (std::size_t i = 0; i < parts.size(); ++i)
    lab.kernels()->row_sum(parts[i].sum, parts[i].target_logit, parts[i].logits, parts[i].maximum, whole.targets,
                           entries[i], SumOrder::split(stored, leaves_of({0, n})));
  for (std::size_t distance = 1; distance < parts.size(); distance *= 2)
    for (std::size_t i = 0; i < parts.size(); i += 2 * distance) {
      lab.kernels()->add(parts[i].sum, parts[i + distance].sum);
      lab.kernels()->add(parts[i].target_logit, parts[i + distance].target_logit);
    }
  CHECK(different_bits(parts[0].sum, whole.sum) == 0);
  CHECK(different_bits(parts[0].target_logit, whole.target_logit) == 0);

  whole.backward();
  std::int64_t different = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    lab.kernels()->loss_backward(parts[i].logits, whole.maximum, whole.sum, whole.targets, entries[i]);
    for (std::int64_t r = 0; r < R; ++r)
      different += different_bits(parts[i].logits.slice({r * stored, stored}),
                                  whole.logits.slice({r * padded + static_cast<std::int64_t>(i) * stored, stored}));
  }
  CHECK(different == 0);
}

}  // namespace

TEST_CASE("row_maximum, row_sum, loss_backward: parts of the vocabulary give the bits of the whole")
{
  for (const OrderedFamily& family : ordered_families())
    for (const int n : {2, 4, 8}) {  // with 8, the last two parts have nothing but padding
      INFO(family.name << ", " << n << " parts");
      Laboratory lab(family.make());
      check_parts(lab, n);
    }
}

TEST_CASE("loss: bf16 logits give f32's loss of the same logits; only the gradient is rounded")
{
  Laboratory lab;
  const Loss stored(lab, DType::bf16);
  Loss exact(lab, DType::f32);
  exact.logits = lab.converted(stored.logits, DType::f32);
  CHECK(stored.forward() == exact.forward());
  stored.backward();
  exact.backward();
  CHECK(different_bits(stored.logits, lab.converted(exact.logits, DType::bf16)) == 0);
}
