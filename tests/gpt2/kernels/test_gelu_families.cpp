#include <cmath>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// R rows of n hidden channels.
struct Size {
  std::int64_t R, n;
};
constexpr Size sizes[] = {{1, 1}, {1, 37}, {5, 7}, {3, 64}, {67, 129}};

/// The bias has the size of x, so that x comes out as half and twice what it was.
Computation forward(const Size& s, const Values& x)
{
  return [=](Data& data, const Kernels& kernels) {
    const Tensor y = data.output({s.R, s.n}), inner = data.updated({s.R, s.n}, x);
    kernels->bias_gelu_forward(y, inner, data.input({s.n}, [=](std::int64_t j) { return 0.5 * x(j); }));
    return std::vector<Output>{{"y", y, 1}, {"x", inner, 1}};
  };
}

Computation backward(const Size& s, const Values& x, bool in_place)
{
  return [=](Data& data, const Kernels& kernels) {
    const Tensor dx = in_place ? data.updated({s.R, s.n}, numbers(3)) : data.output({s.R, s.n});
    const Tensor dy = in_place ? dx : data.input({s.R, s.n}, numbers(3));
    kernels->gelu_backward(dx, dy, data.input({s.R, s.n}, x));
    return std::vector<Output>{{"dx", dx, 1}};
  };
}

/// The reference computes these functions in f64. In f32 the argument of exp(-2u) has an error of 6e-8 times 2u, which is up
/// to 40 where the result is not zero.
constexpr Tolerance in_f32{.floor = 5e-6};

void check_both(const Size& s, const Values& x)
{
  INFO(s.R << " rows of " << s.n);
  check_against_reference(forward(s, x), in_f32);
  for (const bool in_place : {false, true}) check_against_reference(backward(s, x, in_place), in_f32);
}

}  // namespace

TEST_CASE("every gelu: is the reference's in all sizes; the bias is added to x; dx may be dy")
{
  for (const Size& s : sizes) check_both(s, numbers(1, 3));
}

TEST_CASE("every gelu: is the reference's in its curved, flat and linear ranges")
{
  constexpr Size s{5, 129};
  for (const double scale : {1e-38, 1e-20, 1e-3, 0.5, 6.0, 20.0, 100.0, 1e4}) {
    INFO("|x| up to " << scale);
    check_both(s, numbers(1, scale));
  }
  check_both(s, numbers(1, 1, 4));  // nearly x
  check_both(s, [](std::int64_t) { return 0.0; });
}

TEST_CASE("every gelu: the small result for a negative x is not lost by cancellation")
{
  // In front of -3 gelu is x times less than 1e-3, and 1 + tanh in f32 would have an error of 6e-8 there; a whole row of such
  // numbers shows what that is beside the result itself.
  check_both({5, 129}, numbers(1, 1, -3.5));
}

TEST_CASE("every gelu: x of 100 and more gives x and 0, and slopes 1 and 0")
{
  constexpr std::int64_t n = 64;
  const Values large = [](std::int64_t i) {
    return (i % 2 == 0 ? 1 : -1) * std::pow(10.0, 2 + static_cast<double>(i % 5));
  };
  for_each_family([&](const Kernels& kernels) {
    Data data;
    const Tensor y = data.output({1, n}), x = data.updated({1, n}, large), dx = data.output({1, n});
    kernels->bias_gelu_forward(y, x, data.input({n}, numbers(2, 0)));
    kernels->gelu_backward(dx, data.input({1, n}, numbers(3, 0, 1)), x);
    for (std::int64_t i = 0; i < n; ++i) {
      const double above = i % 2 == 0 ? 1 : 0;
      CHECK(y.data<float>()[i] == Approx(above * large(i)).epsilon(1e-6).margin(1e-20));
      CHECK(dx.data<float>()[i] == Approx(above).epsilon(1e-6).margin(1e-20));
    }
  });
}

TEST_CASE("every gelu: after a product, in one call or in two")
{
  // A GPU makes one kernel of it where rows are multiples of 16 bytes and the tensors stand on one.
  constexpr struct {
    std::int64_t m, k, n;
  } products[] = {{1, 1, 1}, {3, 40, 24}, {5, 7, 9}, {17, 64, 80}};
  for (const auto& s : products) {
    INFO("(" << s.m << ", " << s.k << ", " << s.n << ")");
    const SumOrder order = SumOrder::sequential(s.k);
    check_against_reference(
        [=](Data& data, const Kernels& kernels) {
          const Tensor y = data.output({s.m, s.n}), x = data.output({s.m, s.n});
          const Tensor a = data.input({s.m, s.k}, numbers(1)), b = data.input({s.k, s.n}, numbers(2));
          kernels->matmul_gelu_forward(y, Matrix::of(x, s.m), Matrix::of(a, s.m), Matrix::of(b, s.k), order,
                                       data.input({s.n}, numbers(3, 2)));
          return std::vector<Output>{{"y", y, s.n}, {"x", x, s.n}};
        },
        {});
    check_against_reference(
        [=](Data& data, const Kernels& kernels) {
          const Tensor dx = data.output({s.m, s.n}), dy = data.input({s.m, s.k}, numbers(4));
          const Tensor b = data.input({s.n, s.k}, numbers(2));
          kernels->matmul_gelu_backward(Matrix::of(dx, s.m), Matrix::of(dy, s.m), Matrix::of(b, s.n).transposed(),
                                        order, data.input({s.m, s.n}, numbers(5, 3)));
          return std::vector<Output>{{"dx", dx, s.n}};
        },
        {});
  }
}

TEST_CASE("every tanh: is the reference's in all sizes and ranges, also in place")
{
  const auto forward_of = [](std::int64_t n, const Values& x, bool in_place) {
    return [=](Data& data, const Kernels& kernels) {
      const Tensor y = in_place ? data.updated({n}, x) : data.output({n});
      kernels->tanh_forward(y, in_place ? y : data.input({n}, x));
      return std::vector<Output>{{"y", y, 1}};
    };
  };
  const auto backward_of = [](std::int64_t n, const Values& x, bool in_place) {
    return [=](Data& data, const Kernels& kernels) {
      const Tensor dx = in_place ? data.updated({n}, numbers(3)) : data.output({n});
      kernels->tanh_backward(dx, in_place ? dx : data.input({n}, numbers(3)),
                             data.input({n}, [=](std::int64_t i) { return std::tanh(x(i)); }));
      return std::vector<Output>{{"dx", dx, 1}};
    };
  };
  for (const std::int64_t n : {1, 7, 64, 1031})
    for (const double scale : {1e-20, 1e-3, 0.5, 3.0, 1e4})
      for (const bool in_place : {false, true}) {
        INFO("n " << n << ", |x| up to " << scale << ", in place " << in_place);
        check_against_reference(forward_of(n, numbers(1, scale), in_place));
        check_against_reference(backward_of(n, numbers(1, scale), in_place));
      }
}
