#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Around the sizes of vector registers and of what threads may share; the last is several of any chunk.
constexpr std::int64_t sizes[] = {1, 7, 15, 16, 17, 63, 65, 1000, 8191, 8193, 50001};

/// Weights, moments, gradient, and the numbers of a step.
struct Update {
  std::int64_t n;
  AdamWStep step;
  double gradient_size = 1;
  DType gradient_type = DType::f32;  // that of the gradient's numbers

  Values weight() const { return numbers(1, 0.02); }
  Values first() const { return numbers(2, step.number == 1 ? 0 : 0.1 * gradient_size); }
  Values second() const
  {
    const double size = step.number == 1 ? 0 : 0.1 * gradient_size * gradient_size;
    return [=](std::int64_t i) { return size * std::abs(number(i, 3)); };
  }
  Values gradient() const
  {
    return [size = gradient_size, in_bf16 = gradient_type == DType::bf16](std::int64_t i) {
      const double g = size * number(i, 4) * std::pow(10.0, -static_cast<double>(i % 3));
      return in_bf16 ? static_cast<double>(static_cast<float>(bf16(static_cast<float>(g)))) : g;
    };
  }
};

/// An f32 number, as f64.
double in_f32(double value)
{
  return static_cast<double>(static_cast<float>(value));
}

/// Result of an update by algorithm 2 of Loshchilov and Hutter in f64, from f32 numbers.
struct PlainAdamW {
  explicit PlainAdamW(const Update& u)
  {
    const AdamWStep& s = u.step;
    const auto number = static_cast<double>(s.number);
    for (std::int64_t i = 0; i < u.n; ++i) {
      const double weight = in_f32(u.weight()(i)), g = s.gradient_scale * in_f32(u.gradient()(i));
      m.push_back(s.beta1 * in_f32(u.first()(i)) + (1 - s.beta1) * g);
      v.push_back(s.beta2 * in_f32(u.second()(i)) + (1 - s.beta2) * g * g);
      const double mhat = m.back() / (1 - std::pow(s.beta1, number)),
                   vhat = v.back() / (1 - std::pow(s.beta2, number));
      way.push_back(-s.learning_rate * (mhat / (std::sqrt(vhat) + s.epsilon) + s.weight_decay * weight));
    }
  }
  std::vector<double> m, v, way;  // way: how far the weight moves
};

/// Moments and way of a weight, by a family of kernels; where activations are bf16, the rounded weight too.
Computation update(const Update& u)
{
  return [=](Data& data, const Kernels& kernels) {
    const Tensor p = data.updated({u.n}, u.weight(), Role::sum), m = data.updated({u.n}, u.first(), Role::sum);
    const Tensor v = data.updated({u.n}, u.second(), Role::sum), way = data.output({u.n}, Role::sum);
    const Tensor gradient = data.input({u.n}, u.gradient(), Role::gradient);
    const Tensor rounded = data.types().activation == DType::bf16 ? data.output({u.n}) : Tensor();
    const std::vector<double> start = values_of(p);
    kernels->adamw(p, m, v, gradient, u.step, rounded);
    for (std::int64_t i = 0; i < u.n; ++i)
      way.data<float>()[i] = p.data<float>()[i] - static_cast<float>(start[static_cast<std::size_t>(i)]);
    if (!rounded.empty()) {
      Laboratory lab;
      CHECK(different_bits(rounded, lab.converted(p, DType::bf16)) == 0);
    }
    return std::vector<Output>{{"m", m, 1}, {"v", v, 1}, {"way", way, 1}};
  };
}

/// Requires that all families leave what the formula says, twice with the same bits.
void check_update(const Update& u, const Types& types)
{
  // A way of 6e-4 is the difference of two weights of 0.02, each rounded to 9e-10: 2e-6 of it. beta2 = 0.95 as an f32 is
  // off by 1e-8, which is 1e-7 of v.
  constexpr double tolerance = 1e-5;
  const PlainAdamW plain(u);
  const std::vector<double>* truth[] = {&plain.m, &plain.v, &plain.way};
  for_each_family(types, [&](const Kernels& kernels) {
    run_and_use(update(u), kernels, types, [&](const std::vector<Output>& first) {
      run_and_use(update(u), kernels, types, [&](const std::vector<Output>& second) {
        for (std::size_t i = 0; i < first.size(); ++i)
          CHECK(different_bits(first[i].values, second[i].values) == 0);
      });
      Data exact(all_f32.exact());
      for (std::size_t i = 0; i < first.size(); ++i) {
        INFO(first[i].name);
        const Output wanted{"", exact.input({u.n}, elements_of(*truth[i])), 1};
        CHECK(Errors::of(first[i], wanted).whole < tolerance);
        CHECK(Errors::of(first[i], wanted).worst_row < tolerance);
      }
    });
  });
}

}  // namespace

TEST_CASE("every adamw: is the formula in f64, in the first step and in the thousandth, with and without decay")
{
  for (const std::int64_t n : sizes)
    for (const std::int64_t number : {1, 2, 1000})
      for (const double decay : {0.0, 0.1}) {
        INFO("n " << n << ", step " << number << ", decay " << decay);
        Update u{n,
                 {.learning_rate = 6e-4,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .epsilon = number == 2 ? 0.03 : 1e-8,  // 0.03: its place in the formula shows
                  .weight_decay = decay,
                  .gradient_scale = 0.25,
                  .number = number}};
        check_update(u, all_f32);
        check_update(u, mixed);
        u.gradient_type = DType::bf16;
        check_update(u, all_bf16);
      }
}

TEST_CASE("every adamw: gradients of any size change a weight by a step, a zero gradient does not")
{
  for (const double size : {1e-6, 1e4, 1e8}) {
    INFO("gradients of " << size);
    const Update u{1000, {.learning_rate = 1e-3, .epsilon = 0, .number = 1}, size};
    Data exact(all_f32.exact());
    const Output wanted{"", exact.input({u.n}, elements_of(PlainAdamW(u).way)), 1};
    for_each_family([&](const Kernels& kernels) {
      Data data;
      CHECK(Errors::of(update(u)(data, kernels)[2], wanted).worst_row < 1e-5);
    });
  }
  const Update none{1000, {.learning_rate = 1e-3, .number = 1}, 0};
  for_each_family([&](const Kernels& kernels) {
    Data data;
    CHECK(values_of(update(none)(data, kernels)[2].values) == std::vector<double>(1000));
  });
}

TEST_CASE("every adamw: the reference of a GPU has the bits of that of the CPU")
{
  const Update u{1000, {.learning_rate = 6e-4, .weight_decay = 0.1, .gradient_scale = 0.3, .number = 7}};
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    Laboratory lab;
    Data found, wanted;
    const std::vector<Output> there = update(u)(found, family.make()), here = update(u)(wanted, lab.kernels());
    for (std::size_t i = 0; i < here.size(); ++i) CHECK(different_bits(there[i].values, here[i].values) == 0);
  }
}

TEST_CASE("every convert: rounds to nearest, ties to even, and widens without loss")
{
  // Between neighbours of bf16, on both sides of the middle and in it; the largest; what rounds to infinity; infinity.
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<double> values{1,           1 + 0x1p-8,  1 + 0x3p-8,  1 + 0x1.0002p-8, 1 + 0x1.fffcp-9,
                                   -1 - 0x3p-8, 0x1.fep+127, 0x1.ffp+127, 0x1.fefep+127,   infinity,
                                   -infinity,   0x1p-140};
  for (const std::int64_t n : sizes)
    for_each_family(mixed, [&](const Kernels& kernels) {
      Data data(mixed);
      const Tensor from = data.input(
          {n}, [&](std::int64_t i) { return i < 12 ? values[static_cast<std::size_t>(i)] : number(i, 1); },
          Role::sum);
      const Tensor rounded = data.output({n}), wide = data.output({n}, Role::sum);
      kernels->convert(rounded, from);
      kernels->convert(wide, rounded);
      Laboratory lab;
      CHECK(different_bits(rounded, lab.converted(from, DType::bf16)) == 0);
      CHECK(different_bits(wide, lab.converted(rounded, DType::f32)) == 0);
      CHECK(data.damaged() == 0);
    });
  for_each_family(mixed, [](const Kernels& kernels) {
    Data data(mixed);
    CHECK_THROWS_AS(kernels->convert(data.output({4}), data.output({5}, Role::sum)), Error);
    const Tensor nan = data.output({1}, Role::sum), rounded = data.updated({1}, numbers(1));
    nan.data<float>()[0] = std::bit_cast<float>(0x7F800001U);  // its upper half is that of infinity
    kernels->convert(rounded, nan);
    CHECK(std::isnan(values_of(rounded)[0]));
  });
}

TEST_CASE("every add: adds element by element, with the bits of the reference")
{
  for (const Types& types : {all_f32, mixed})
    for (const std::int64_t n : sizes) {
      const auto sum = [&](Data& data, const Kernels& kernels) {
        const Tensor into = data.updated({n}, numbers(1));
        kernels->add(into, data.input({n}, numbers(2)));
        return into;
      };
      Laboratory lab;
      Data reference(types);
      const Tensor wanted = sum(reference, lab.kernels());
      for_each_family(types, [&](const Kernels& kernels) {
        Data data(types);
        CHECK(different_bits(sum(data, kernels), wanted) == 0);
        CHECK(data.damaged() == 0);
      });
    }
  for_each_family([](const Kernels& kernels) {
    Data data;
    CHECK_THROWS_AS(kernels->add(data.output({4}), data.output({5})), Error);
  });
}

TEST_CASE("every maximum: takes the larger of each two elements, with the bits of the reference")
{
  constexpr double nothing = -std::numeric_limits<double>::infinity();  // of a part that has nothing but padding
  for (const Types& types : {all_f32, mixed})
    for (const std::int64_t n : sizes) {
      const auto larger = [&](Data& data, const Kernels& kernels) {
        const Tensor into = data.updated({n}, [](std::int64_t i) { return i % 5 == 0 ? nothing : number(i, 1); });
        kernels->maximum(into,
                         data.input({n}, [](std::int64_t i) { return i % 10 == 1 ? nothing : number(i, 2); }));
        return into;
      };
      Laboratory lab;
      Data reference(types);
      const Tensor wanted = larger(reference, lab.kernels());
      for_each_family(types, [&](const Kernels& kernels) {
        Data data(types);
        CHECK(different_bits(larger(data, kernels), wanted) == 0);
        CHECK(data.damaged() == 0);
      });
    }
  for_each_family([](const Kernels& kernels) {
    Data data;
    CHECK_THROWS_AS(kernels->maximum(data.output({4}), data.output({5})), Error);
  });
}

TEST_CASE("every squared_norm: is the sum of squares in f64, and NaN where an element is")
{
  for (const std::int64_t n : sizes)
    for (const double size : {1e-5, 1.0, 1e5})
      for (const Types& types : {all_f32, mixed}) {
        INFO(n << " elements of " << size);
        Data data(types);
        const Tensor x = data.input({n}, numbers(1, size));
        double expected = 0;
        for (const double value : values_of(x)) expected += value * value;
        for_each_family(types, [&](const Kernels& kernels) {
          const double norm = kernels->squared_norm(x).value();
          // f64 sums of 50001 terms, and multiples of 2^-80 (8e-25) for squares of 1e-10
          CHECK(norm == Approx(expected).epsilon(1e-11));
          CHECK(kernels->squared_norm(x).value() == norm);
        });
      }
  for (const std::int64_t at : {0, 500, 999}) {
    Data data;
    const Tensor x = data.updated({1000}, numbers(1));
    x.data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
    for_each_family([&](const Kernels& kernels) { CHECK(std::isnan(kernels->squared_norm(x).value())); });
  }
}

TEST_CASE("every squared_norm: on a GPU too it is the same whatever pieces it is added from")
{
  Laboratory lab;
  const Tensor x = lab.filled(DType::f32, {40'000}, 1, 30);
  const ExactScalar::Lanes wanted = lab.kernels()->squared_norm(x).lanes();
  for (const OrderedFamily& family : ordered_families()) {
    INFO(family.name);
    const Kernels kernels = family.make();
    ExactScalar pieces;
    for (const Range piece : {Range{7'000, 33'000}, Range{0, 1}, Range{1, 6'999}})
      pieces += kernels->squared_norm(x.slice(piece));
    CHECK(pieces.lanes() == wanted);
  }
}

TEST_CASE("every first_not_finite: names the first NaN or infinity, with any number of threads")
{
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                   infinity = std::numeric_limits<double>::infinity();
  const auto check_in = [&](const Types& types, const Kernels& kernels) {
    for (const std::int64_t n : sizes) {
      INFO(n << " elements");
      Data data(types);
      const Tensor x = data.updated({n}, numbers(1));
      CHECK(kernels->first_not_finite(x) == std::nullopt);
      for (const double bad : {nan, -nan, infinity, -infinity})
        for (const std::int64_t at : {n - 1, n / 2, std::int64_t{0}}) {  // each before those that stay
          assign(x.slice({at, 1}), std::vector<double>{bad});
          CHECK(kernels->first_not_finite(x) == at);
          if (at == 0) assign(x, std::vector<double>(static_cast<std::size_t>(n), 1));
        }
    }
  };
  for (const Types& types : {all_f32, mixed})
    for_each_family(types, [&](const Kernels& kernels) { check_in(types, kernels); });
}

TEST_CASE("every first_not_finite: the largest and the smallest finite numbers are finite")
{
  Data data;
  constexpr float largest = std::numeric_limits<float>::max(), smallest = std::numeric_limits<float>::denorm_min();
  const Tensor x = data.updated({1000}, numbers(1));
  for (std::int64_t i = 0; i < 1000; ++i)
    x.data<float>()[i] = i % 3 == 0 ? smallest : i % 3 == 1 ? largest : -largest;
  for_each_family([&](const Kernels& kernels) { CHECK(kernels->first_not_finite(x) == std::nullopt); });
}

TEST_CASE("every element-wise kernel: processes more elements than a GPU has threads")
{
  constexpr std::int64_t n = 4 * 4096 * 256 + 77;  // 4096 blocks of 256 threads with 4 elements each, and some
  for_each_family([](const Kernels& kernels) {
    Laboratory lab;
    const Tensor x = lab.zeros(DType::f32, {n}), one = lab.zeros(DType::f32, {n}), m = lab.zeros(DType::f32, {n});
    for (const std::int64_t i : {std::int64_t{0}, n - 1}) one.data<float>()[i] = 1;
    kernels->add(x, one);
    CHECK(different_bits(x, one) == 0);
    CHECK(kernels->squared_norm(x).value() == 2);
    kernels->maximum(m, one);
    CHECK(different_bits(m, one) == 0);
    for (const std::int64_t i : {std::int64_t{0}, n - 1}) m.data<float>()[i] = 0;
    // With these numbers an update takes g off the weight.
    kernels->adamw(x, m, lab.zeros(DType::f32, {n}), one, {.learning_rate = 1, .epsilon = 0x1p-30, .number = 1});
    CHECK(kernels->squared_norm(m.slice({n - 1, 1})).value() == Approx(0.01));
    CHECK(x.data<float>()[n - 1] == Approx(0).margin(1e-6));
    one.data<float>()[n - 1] = std::numeric_limits<float>::infinity();
    CHECK(kernels->first_not_finite(one) == n - 1);
  });
}
