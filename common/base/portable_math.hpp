#pragma once

#include <bit>
#include <cfloat>
#include <cstdint>
#include <limits>
#include <type_traits>

/// @file
/// exp, tanh, log, cos and integer powers with the same bits everywhere: on each processor and GPU, with each compiler and C
/// library, at each level of optimisation. Those of the C library differ there in the last bit.
///
/// They consist of +, -, * and / in f64, each rounded once as IEEE 754 says, of comparisons, and of operations on
/// the bits. They have no branches and no tables, so that a compiler vectorises loops that call them; all are
/// constexpr, which also makes nvcc compile them for a GPU.
///
/// Functions of f32 are computed in f64, with a relative error below 2^-51, and rounded once at the end. For each
/// of the 2^32 arguments the result is the correctly rounded one (tests/common/base/portable_math_all.cpp). A
/// result that is not a number is always the positive quiet NaN without payload. Rounding to nearest is assumed,
/// and that subnormal numbers are not flushed to zero.
///
/// Each polynomial has the least possible largest error, relative to the function, on its interval (Remez 1934), for
/// coefficients that are rounded to f64 one after the other, from the lowest up, each time with those above it fitted again.
/// Errors are given in ulp, units in the last place of the result. Their bounds are from a running error analysis on small
/// intervals: each operation adds half an ulp of its largest result.
///
/// A product and a sum must not be contracted to one rounding: like all exact code, what includes this file is compiled with
/// -ffp-contract=off, or by nvcc with -fmad=false. So the fast families (gpt2/kernels/cpu, gpt2/kernels/cuda) do not
/// include it.

#ifdef __FAST_MATH__
#error "portable_math.hpp cannot be compiled with -ffast-math"
#endif

namespace rankwise::portable {

static_assert(std::numeric_limits<double>::is_iec559 && std::numeric_limits<float>::is_iec559);
static_assert(FLT_EVAL_METHOD == 0, "f64 arithmetic must round each result to f64 (on x86: -mfpmath=sse)");

namespace detail {

/// lowest + higher[0] x + higher[1] x^2 + ..., by Horner's rule.
template <class... Higher>
constexpr double polynomial(double x, double lowest, Higher... higher)
{
  if constexpr (sizeof...(higher) == 0)
    return lowest;
  else
    return lowest + x * polynomial(x, higher...);
}

/// Sign bit of an f64.
constexpr std::uint64_t sign_bit = 1ULL << 63;
/// Number of fraction bits of an f64.
constexpr int fraction_bits = 52;

/// |x|.
constexpr double magnitude(double x)
{
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & ~sign_bit);
}

/// The upper 26 bits of x: the product with a number of as many bits is exact.
constexpr double upper_half(double x)
{
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & ~((1ULL << 27) - 1));
}

/// ln 2 in two parts, of which the upper one has 42 bits: its products with the exponents of f64 are exact.
constexpr double ln2_high = 0x1.62e42fefa38p-1;
/// The lower part.
constexpr double ln2_low = 0x1.ef35793c7673p-45;

/// Adding two_52 to a number from 0 to 2^52, or integer_shift to one of either sign up to 2^51, leaves the nearest integer in
/// the low bits of the sum. Subtracting it again leaves that integer.
constexpr double two_52 = 0x1p52;
/// See two_52.
constexpr double integer_shift = 0x1.8p52;

/// 2^n for an integer -1022 <= n <= 1023.
constexpr double power_of_two(double n)
{
  constexpr std::uint64_t one = std::bit_cast<std::uint64_t>(1.0);
  return std::bit_cast<double>((std::bit_cast<std::uint64_t>(n + integer_shift) << fraction_bits) + one);
}

/// condition ? yes : no, by a mask: a compiler may make branches of `?:`, and then it does not vectorise the loop around them.
template <class A>
constexpr A select(bool condition, A yes, A no)
{
  using Bits = std::conditional_t<sizeof(A) == 8, std::uint64_t, std::uint32_t>;
  const Bits mask = Bits(0) - static_cast<Bits>(condition);
  return std::bit_cast<A>((std::bit_cast<Bits>(yes) & mask) | (std::bit_cast<Bits>(no) & ~mask));
}

/// x, or the positive quiet NaN in place of any NaN, whose sign and payload differ between processors.
template <class A>
constexpr A canonical(A x)
{
  return select(x <= std::numeric_limits<A>::infinity(), x, std::numeric_limits<A>::quiet_NaN());
}

/// A number as an unevaluated sum, |high| >= |low|.
struct Sum {
  double high;  ///< the sum, rounded to f64
  double low;   ///< rounding error of `high`
};

/// The sum, rounded to odd: if it is not a number of f64, to that neighbour whose last bit is 1. Rounded once more, to f32,
/// it becomes what the exact sum would be rounded to, since it is never taken for the middle between two numbers of f32.
/// @source  Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums", doi:10.1109/TC.2007.70819.
constexpr double rounded_to_odd(Sum x)
{
  const double nearest = x.high + x.low, rest = x.low - (nearest - x.high);
  const auto bits = std::bit_cast<std::uint64_t>(nearest);
  const auto inexact = static_cast<std::uint64_t>(rest != 0);
  const std::uint64_t too_large = inexact & ((bits ^ std::bit_cast<std::uint64_t>(rest)) >> 63);
  return std::bit_cast<double>((bits - too_large) | inexact);
}

/// A number as 2^exponent fraction.
struct Scaled {
  double fraction;  ///< between two neighbouring powers of two, about
  double exponent;  ///< a whole number
};

/// e^x for |x| <= 746. The fraction is in [0.7, 1.42] and wrong by at most 0.85 ulp.
///
/// With n the integer nearest to x / ln 2 and r = x - n ln 2, |r| <= ln 2 / 2: e^x = 2^n e^r. The upper part of n
/// ln 2 is subtracted first, and exactly. e^r = 1 + r + r^2 P(r), where P has an error of 2^-57.4 relative to e^r;
/// the rounding errors of r and 1 + r are added to the small term.
constexpr Scaled scaled_exp(double x)
{
  constexpr double log2_e = 0x1.71547652b82fep+0;
  const double n = (x * log2_e + integer_shift) - integer_shift;
  const double high = x - n * ln2_high, low = n * ln2_low;
  const double r = high - low, lost = (high - r) - low;
  const double r2 = r * r;
  // Even and odd powers are added apart: two short chains of operations instead of one long one.
  const double even = polynomial(r2, 0x1p-1, 0x1.5555555553202p-5, 0x1.6c16c17cc40bfp-10, 0x1.a019ab2c45a64p-16,
                                 0x1.289f8a46b353bp-22);
  const double odd = polynomial(r2, 0x1.5555555555501p-3, 0x1.1111111128932p-7, 0x1.a01a011bf4b0ep-13,
                                0x1.71df5597070e3p-19, 0x1.ad1f9a24053c6p-26);
  const double sum = 1 + r, lost_by_sum = (1 - sum) + r;
  return {sum + (lost_by_sum + (lost + r2 * (even + r * odd))), n};
}

/// x, but at least @p low and at most @p high; NaN stays NaN.
constexpr double limited(double x, double low, double high)
{
  const double at_least = select(x < low, low, x);
  return select(at_least > high, high, at_least);
}

/// tanh(x) with an error of at most 1.5 ulp.
///
/// For |x| < 0.6875 it is x + x z N(z) / D(z) with z = x^2 and a relative error of 2^-58.5, otherwise 1 - 2 / (e^2x + 1), which
/// does not cancel there; beyond 22 it is 1. Both need one division, which they share.
constexpr double tanh_of(double x)
{
  const double a = limited(magnitude(x), 0, 22), z = a * a;
  const Scaled e = scaled_exp(2 * a);
  const double n = z * polynomial(z, -0x1.555555555555p-2, -0x1.4fc3ba5a607bdp-6, -0x1.a13598ffaf099p-13);
  const double d = polynomial(z, 1, 0x1.d88e4c8a8b857p-2, 0x1.7d7cfab02f4bep-6, 0x1.b099a120d74cep-13);
  const bool small = a < 0.6875;
  const double quotient = select(small, n, -2.0) / select(small, d, 1 + e.fraction * power_of_two(e.exponent));
  const double result = select(small, a + a * quotient, 1 + quotient);
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(result) | (std::bit_cast<std::uint64_t>(x) & sign_bit));
}

/// log(2^-shift x) for a normal number x > 0, as a sum that is wrong by at most 0.6 ulp.
///
/// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)]. With s = f / (2 + f), log(1 + f) = 2 atanh(s) = 2 s + s z
/// R(z), z = s^2, which is f - (f^2/2 - s (f^2/2 + z R(z))): f is exact, and the subtrahend is small. R has an
/// error of 2^-59.5 relative to the logarithm. The rounding error of k ln 2 + f is added to the small term.
constexpr Sum log_of_normal(double x, double shift)
{
  constexpr int exponent_of_one = 1023;
  constexpr std::uint64_t one = std::bit_cast<std::uint64_t>(1.0);
  constexpr std::uint64_t root = std::bit_cast<std::uint64_t>(0x1.6a09e667f3bcdp-1);  // sqrt(1/2)
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x) + (one - root);
  const double k = std::bit_cast<double>((bits >> fraction_bits) | std::bit_cast<std::uint64_t>(two_52)) -
                   (two_52 + exponent_of_one + shift);
  const double f = std::bit_cast<double>((bits & ((1ULL << fraction_bits) - 1)) + root) - 1;
  const double s = f / (2 + f), z = s * s, half_square = 0.5 * f * f;
  const double r =
      polynomial(z, 0x1.5555555555592p-1, 0x1.999999997ff1bp-2, 0x1.24924941e12f1p-2, 0x1.c71c521473d58p-3,
                 0x1.74663ce6030eap-3, 0x1.39a1e9894fe8cp-3, 0x1.2f03b2b2ef7a3p-3);
  const double subtracted = half_square - (s * (half_square + z * r) + k * ln2_low);
  const double high = k * ln2_high, sum = high + f, lost_by_sum = (high - sum) + f;
  return {sum, lost_by_sum - subtracted};
}

/// The logarithm @p of_normal of x, unless x is zero, infinite, negative or NaN.
template <class A>
constexpr A log_of(A x, A of_normal)
{
  constexpr A infinity = std::numeric_limits<A>::infinity();
  const A finite = select(x > 0, of_normal, -infinity);
  const A positive = select(x < infinity, finite, infinity);
  return select(x >= 0, positive, std::numeric_limits<A>::quiet_NaN());
}

}  // namespace detail

/// e^x, with an error of at most 0.85 ulp (subnormal results: 1 ulp).
constexpr double exp(double x)
{
  using namespace detail;
  const Scaled e = scaled_exp(limited(x, -746, 710));
  // In two factors, since 2^exponent may be out of range where the result is not.
  const double half = (0.5 * e.exponent + integer_shift) - integer_shift;
  return canonical(e.fraction * power_of_two(half) * power_of_two(e.exponent - half));
}

/// e^x, rounded to f32.
constexpr float exp(float x)
{
  using namespace detail;
  const Scaled e = scaled_exp(limited(x, -104, 89));
  return canonical(static_cast<float>(e.fraction * power_of_two(e.exponent)));
}

/// tanh(x), with an error of at most 1.5 ulp.
constexpr double tanh(double x)
{
  return detail::canonical(detail::tanh_of(x));
}

/// tanh(x), rounded to f32.
constexpr float tanh(float x)
{
  return detail::canonical(static_cast<float>(detail::tanh_of(x)));
}

/// The natural logarithm, with an error of at most 1.1 ulp; -infinity for a zero of either sign, NaN for x < 0.
constexpr double log(double x)
{
  using namespace detail;
  constexpr double smallest_normal = 0x1p-1022;
  const bool subnormal = x < smallest_normal;
  const Sum result = log_of_normal(select(subnormal, x * 0x1p54, x), select(subnormal, 54.0, 0.0));
  return log_of(x, result.high + result.low);
}

/// The natural logarithm, rounded to f32.
constexpr float log(float x)
{
  using namespace detail;
  return log_of(x, static_cast<float>(rounded_to_odd(log_of_normal(x, 0))));
}

/// cos(pi x), with an error of at most 1.2 ulp; exactly 0, 1 or -1 where 2 x is an integer. cos(2 pi u) is cos_pi(2 * u).
///
/// Whole turns are taken off exactly, which leaves at most half a turn; by symmetry the result is the sine or the cosine of
/// pi v with 0 <= v <= 1/4: pi v + v^3 S(v^2), relative error 2^-58, or 1 - v^2 C(v^2), 2^-61.5. The product pi v is computed
/// in parts, the first of which is exact.
constexpr double cos_pi(double x)
{
  using namespace detail;
  constexpr double pi_high = 0x1.921fb5p+1, pi_low = 0x1.110b4611a6263p-25;
  const double a = limited(magnitude(x), 0, 0x1p53);  // from 2^53 on all numbers are even
  const double turns = (0.5 * a + two_52) - two_52;
  const double angle = magnitude(a - 2 * turns);               // in [0, 1]
  const double acute = select(angle > 0.5, 1 - angle, angle);  // in [0, 1/2]
  const double v = select(acute > 0.25, 0.5 - acute, acute), z = v * v;
  const double upper = upper_half(v);
  const double s = polynomial(z, -0x1.4abbce625be47p+2, 0x1.466bc67758dfap+1, -0x1.32d2cce33a56p-1,
                              0x1.50783021c754fp-4, -0x1.e300abb1bbd4fp-8, 0x1.e40581dc01e38p-12);
  const double c =
      polynomial(z, 0x1.3bd3cc9be45dep+2, -0x1.03c1f081b5a4fp+2, 0x1.55d3c7e3bf5abp+0, -0x1.e1f506749a42bp-3,
                 0x1.a6d1e138ce2a1p-6, -0x1.f9c3d3c9ebadbp-10, 0x1.afee4977f1abp-14);
  const double sine = upper * pi_high + (((v - upper) * pi_high + v * pi_low) + v * z * s);
  const double result = select(acute > 0.25, sine, 1 - z * c);
  const double with_sign = select(angle > 0.5, 0 - result, result);  // 0 - 0 is 0, not -0
  return select(magnitude(x) < std::numeric_limits<double>::infinity(), with_sign,
                std::numeric_limits<double>::quiet_NaN());
}

/// base^exponent by repeated squaring, with a relative error of at most about |exponent| 2^-53; exact where all powers on the
/// way are.
constexpr double power(double base, std::int64_t exponent)
{
  const bool inverse = exponent < 0;
  double result = 1;
  for (auto left = static_cast<std::uint64_t>(exponent) * (inverse ? ~0ULL : 1ULL); left > 0; left >>= 1) {
    if (left & 1) result *= base;
    base *= base;
  }
  return detail::canonical(inverse ? 1 / result : result);
}

}  // namespace rankwise::portable
