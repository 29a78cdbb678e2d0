// Checks portable_math.hpp against MPFR: functions of f32 for all 2^32 arguments, those of f64 for random and hard ones.
//
// Sample runs:  build/tests/portable_math_all               about five minutes on one core
//               build/tests/portable_math_all 100000        that many arguments in f64 instead of ten million
//
// Prints how many results in f32 are not correctly rounded, and the largest error in f64 in units in the last place of the
// exact result (ulp). Status 1 if there are more, or larger ones, than the header promises.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mpfr.h>

#include "common/base/philox.hpp"
#include "common/base/portable_math.hpp"

using namespace rankwise;

namespace {

/// A number of MPFR, with enough bits that its error does not count here.
class Precise {
 public:
  Precise() { mpfr_init2(value_, 160); }
  ~Precise() { mpfr_clear(value_); }
  Precise(const Precise&) = delete;
  Precise& operator=(const Precise&) = delete;
  mpfr_ptr get() { return value_; }

 private:
  mpfr_t value_;
};

using Exact = void(mpfr_ptr y, double x);  // leaves the function of x in y

void exact_exp(mpfr_ptr y, double x)
{
  mpfr_set_d(y, x, MPFR_RNDN);
  mpfr_exp(y, y, MPFR_RNDN);
}

void exact_tanh(mpfr_ptr y, double x)
{
  mpfr_set_d(y, x, MPFR_RNDN);
  mpfr_tanh(y, y, MPFR_RNDN);
}

void exact_log(mpfr_ptr y, double x)
{
  mpfr_set_d(y, x, MPFR_RNDN);
  mpfr_log(y, y, MPFR_RNDN);
}

void exact_cos_pi(mpfr_ptr y, double x)
{
  const double turn = std::fmod(std::abs(x), 2);  // exact
  const bool sine = std::abs(turn - 1) >= 0.25 && std::abs(turn - 1) <= 0.75;
  // cos(pi turn) = sin(pi (1/2 - turn)) = sin(pi (turn - 3/2)), where the difference is exact.
  const double angle = !sine ? turn : turn < 1 ? 0.5 - turn : turn - 1.5;
  mpfr_const_pi(y, MPFR_RNDN);
  mpfr_mul_d(y, y, angle, MPFR_RNDN);
  sine ? mpfr_sin(y, y, MPFR_RNDN) : mpfr_cos(y, y, MPFR_RNDN);
}

/// How many of all 2^32 results are not correctly rounded, the bits of NaN included.
///
/// The C library's function of f64 decides where its result, changed by a 2^-46th part of it up or down, rounds to the same
/// f32; elsewhere MPFR does.
template <class Function, class Library>
std::int64_t wrong_roundings(Function&& function, Library&& library, Exact& exact)
{
  std::int64_t wrong = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : wrong)
  for (std::int64_t block = 0; block < 1 << 16; ++block) {
    Precise y;
    for (std::uint32_t i = 0; i < 1U << 16; ++i) {
      const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(block) << 16 | i);
      const double found = library(static_cast<double>(x));
      auto rounded = static_cast<float>(found * (1 - 0x1p-46));
      if (std::isnan(found)) {
        rounded = std::numeric_limits<float>::quiet_NaN();
      } else if (rounded != static_cast<float>(found * (1 + 0x1p-46))) {
        exact(y.get(), x);
        rounded = mpfr_get_flt(y.get(), MPFR_RNDN);
      }
      const float result = function(x);
      if (std::bit_cast<std::uint32_t>(result) == std::bit_cast<std::uint32_t>(rounded)) continue;
      ++wrong;
#pragma omp critical
      if (wrong < 10) std::printf("  at %a: %a, correctly rounded %a\n", x, result, rounded);
    }
  }
  return wrong;
}

/// The largest error of @p function in ulp over arguments argument(i, words), i = 0 .. count-1, with four random words.
template <class Function, class Argument>
double largest_error(std::int64_t count, Function&& function, Exact& exact, Argument&& argument)
{
  double worst = 0, worst_at = 0;
#pragma omp parallel
  {
    Precise y;
    double own_worst = 0, own_at = 0;
#pragma omp for schedule(static, 1000)
    for (std::int64_t i = 0; i < count; ++i) {
      const double x = argument(i, philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {3, 1415}));
      exact(y.get(), x);
      const int last_place =
          mpfr_zero_p(y.get()) ? -1074 : static_cast<int>(std::max<mpfr_exp_t>(mpfr_get_exp(y.get()) - 53, -1074));
      const double result = function(x);
      if (std::isinf(result) && mpfr_get_d(y.get(), MPFR_RNDN) == result) continue;
      mpfr_sub_d(y.get(), y.get(), result, MPFR_RNDN);
      const double error = std::abs(std::ldexp(mpfr_get_d(y.get(), MPFR_RNDN), -std::max(last_place, -1000))) *
                           (last_place < -1000 ? std::ldexp(1.0, -1000 - last_place) : 1.0);
      if (!(error <= own_worst)) own_worst = error, own_at = x;
    }
#pragma omp critical
    if (!(own_worst <= worst)) worst = own_worst, worst_at = own_at;
  }
  std::printf("at %24a: ", worst_at);
  return worst;
}

/// A random number in [low, high).
double between(double low, double high, const PhiloxWords& words)
{
  return low + (high - low) * ((words[0] + words[1] * 0x1p-32) * 0x1p-32);
}

/// A number next to @p x: at most 2^bits - 1 steps of f64 away from it.
double near(double x, const PhiloxWords& words, int bits)
{
  const std::uint64_t steps = words[2] >> (32 - bits);
  const std::uint64_t at = std::bit_cast<std::uint64_t>(x);
  return std::bit_cast<double>(words[3] % 2 == 0 ? at + steps : at - steps);
}

/// A number of either sign with any exponent in [low, high].
double any_size(int low, int high, const PhiloxWords& words)
{
  const double size = std::ldexp(between(1, 2, words),
                                 low + static_cast<int>(words[2] % static_cast<std::uint32_t>(high - low + 1)));
  return words[3] % 2 == 0 ? size : -size;
}

/// Prints one line of the result. @return  whether it is within the bound.
bool verdict(const char* name, double found, const char* unit, double bound)
{
  std::printf("%-20s %.4g %s, bound %.4g\n", name, found, unit, bound);
  std::fflush(stdout);
  return found <= bound;
}

}  // namespace

int main(int argc, char** argv)
{
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) : 10'000'000;
  bool good = true;

  // In f64: everywhere, in narrow ranges, and beside the ends of the intervals that the functions are computed on.
  const auto exp_argument = [](std::int64_t i, const PhiloxWords& w) {
    switch (i % 5) {
      case 0:
        return between(-708.3, 710, w);
      case 1:
        return between(-1, 1, w);
      case 2:
        return near((static_cast<int>(w[0] % 2040) - 1020 + 0.5) * 0x1.62e42fefa39efp-1, w, 12);
      case 3:
        return near((static_cast<int>(w[0] % 2040) - 1020) * 0x1.62e42fefa39efp-1, w, 12);
      default:
        return any_size(-60, 8, w);
    }
  };
  good &= verdict("exp f64",
                  largest_error(
                      count, [](double x) { return portable::exp(x); }, exact_exp, exp_argument),
                  "ulp", 0.85);
  const auto tiny_result = [](std::int64_t, const PhiloxWords& w) { return between(-746, -708.3, w); };
  good &= verdict("exp f64, subnormal",
                  largest_error(
                      count / 10, [](double x) { return portable::exp(x); }, exact_exp, tiny_result),
                  "ulp", 1);
  const auto tanh_argument = [](std::int64_t i, const PhiloxWords& w) {
    switch (i % 5) {
      case 0:
        return between(-25, 25, w);
      case 1:
        return between(-0.6875, 0.6875, w);
      case 2:
        return between(0.6875, 1.2, w);
      case 3:
        return near(0.6875, w, 20);
      default:
        return any_size(-1070, 5, w);
    }
  };
  good &= verdict("tanh f64",
                  largest_error(
                      count, [](double x) { return portable::tanh(x); }, exact_tanh, tanh_argument),
                  "ulp", 1.5);
  const auto log_argument = [](std::int64_t i, const PhiloxWords& w) {
    switch (i % 5) {
      case 0:
        return std::abs(any_size(-1074, 1023, w));
      case 1:
        return between(0.5, 2, w);
      case 2:
        return near(1, w, 1 + static_cast<int>(w[0] % 31));
      case 3:
        return std::ldexp(near(0x1.6a09e667f3bcdp-1, w, 16), static_cast<int>(w[0] % 7) - 3);
      default:
        return uniform(w[0]);
    }
  };
  good &= verdict("log f64",
                  largest_error(
                      count, [](double x) { return portable::log(x); }, exact_log, log_argument),
                  "ulp", 1.1);
  const auto cos_argument = [](std::int64_t i, const PhiloxWords& w) {
    switch (i % 5) {
      case 0:
        return between(-2, 2, w);
      case 1:
        return 2 * uniform(w[0]);
      case 2:
        return near(0.25 * (w[0] % 16), w, 16);
      case 3:
        return near(0.5 + w[0] % 4, w, 1 + static_cast<int>(w[1] % 31));
      default:
        return any_size(-60, 60, w);
    }
  };
  good &= verdict("cos_pi f64",
                  largest_error(
                      count, [](double x) { return portable::cos_pi(x); }, exact_cos_pi, cos_argument),
                  "ulp", 1.2);

  const auto check_all = [&](const char* name, auto&& function, auto&& library, Exact& exact, int bound) {
    const auto wrong = static_cast<double>(wrong_roundings(function, library, exact));
    good &= verdict(name, wrong, "of 2^32 not correctly rounded", bound);
  };
  check_all(
      "exp f32", [](float x) { return portable::exp(x); }, [](double x) { return std::exp(x); }, exact_exp, 0);
  check_all(
      "tanh f32", [](float x) { return portable::tanh(x); }, [](double x) { return std::tanh(x); }, exact_tanh, 0);
  check_all(
      "log f32", [](float x) { return portable::log(x); }, [](double x) { return std::log(x); }, exact_log, 0);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
