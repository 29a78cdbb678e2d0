#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/base/philox.hpp"
#include "common/base/portable_math.hpp"
#include "tests/catch.hpp"

// tests/common/base/portable_math_all.cpp has all arguments of f32, and MPFR to compare with.

using namespace rankwise;

namespace {

template <class A>
constexpr A infinity = std::numeric_limits<A>::infinity();
template <class A>
constexpr A quiet_nan = std::numeric_limits<A>::quiet_NaN();

template <class A>
struct Known {
  A argument, result;
};

// The bits that every machine must find.
constexpr std::array<Known<float>, 16> known_exp_f32{{{-0x1.9f999ap+6F, 0x1p-149F},
                                                      {-0x1.7cp+6F, 0x1.ec8p-138F},
                                                      {-0x1.5d999ap+6F, 0x1.e085p-127F},
                                                      {-0x1.94p+5F, 0x1.1ad9f4p-73F},
                                                      {-0x1.4p+3F, 0x1.7cd79cp-15F},
                                                      {-0x1.a66666p+1F, 0x1.2e259cp-5F},
                                                      {-0x1p+0F, 0x1.78b564p-2F},
                                                      {-0x1.99999ap-3F, 0x1.a330aep-1F},
                                                      {-0x1p-24F, 0x1.fffffep-1F},
                                                      {0x1p-23F, 0x1.000002p+0F},
                                                      {0x1.666666p-1F, 0x1.01c2a6p+1F},
                                                      {0x1p+0F, 0x1.5bf0a8p+1F},
                                                      {0x1.6p+2F, 0x1.e96244p+7F},
                                                      {0x1.4p+4F, 0x1.ceb088p+28F},
                                                      {0x1.e4ccccp+5F, 0x1.584046p+87F},
                                                      {0x1.62e148p+6F, 0x1.fe8c9p+127F}}};

constexpr std::array<Known<double>, 18> known_exp{{{-0x1.748p+9, 0x0.0000000000001p-1022},
                                                   {-0x1.624p+9, 0x0.e6cf6d08897acp-1022},
                                                   {-0x1.9p+6, 0x1.a8c1f14e2af5dp-145},
                                                   {-0x1.44p+4, 0x1.b93de1e27ca3bp-30},
                                                   {-0x1.cp+2, 0x1.de16b9c24a98fp-11},
                                                   {-0x1.8p+0, 0x1.c8f87724b5c1dp-3},
                                                   {-0x1.3333333333333p-1, 0x1.18fdd6b9604e3p-1},
                                                   {-0x1.999999999999ap-4, 0x1.cf46d99d52b3ap-1},
                                                   {-0x1p-30, 0x1.fffffff8p-1},
                                                   {0x1p-40, 0x1.0000000001p+0},
                                                   {0x1.3333333333333p-2, 0x1.599058c8c1a96p+0},
                                                   {0x1.62e42fead449cp-2, 0x1.6a09e66640654p+0},
                                                   {0x1p+0, 0x1.5bf0a8b145769p+1},
                                                   {0x1.4p+1, 0x1.85d6fd931e0bbp+3},
                                                   {0x1.44p+3, 0x1.85fd05c6fe7abp+14},
                                                   {0x1.62ccccccccccdp+6, 0x1.f4705bbffae5cp+127},
                                                   {0x1.2cp+8, 0x1.c05c0a7166b4ap+432},
                                                   {0x1.62d999999999ap+9, 0x1.d75ae7a50ee14p+1023}}};

constexpr std::array<Known<float>, 14> known_tanh_f32{{{-0x1.3p+3F, -0x1p+0F},
                                                       {-0x1p+1F, -0x1.ed9506p-1F},
                                                       {-0x1.666666p-1F, -0x1.356fb2p-1F},
                                                       {-0x1.333334p-2F, -0x1.2a4ddcp-2F},
                                                       {-0x1.0624dep-10F, -0x1.0624d8p-10F},
                                                       {0x1p-149F, 0x1p-149F},
                                                       {0x1.47ae14p-7F, 0x1.47ab48p-7F},
                                                       {0x1.99999ap-3F, 0x1.943984p-3F},
                                                       {0x1.333334p-1F, 0x1.12f82ap-1F},
                                                       {0x1.6147aep-1F, 0x1.322ab2p-1F},
                                                       {0x1p+0F, 0x1.85efacp-1F},
                                                       {0x1.4p+1F, 0x1.f92582p-1F},
                                                       {0x1.19999ap+2F, 0x1.ffd87ep-1F},
                                                       {0x1.1cccccp+3F, 0x1.fffffep-1F}}};

constexpr std::array<Known<double>, 17> known_tanh{{{-0x1.ep+4, -0x1p+0},
                                                    {-0x1.4p+2, -0x1.fff419668df11p-1},
                                                    {-0x1p+0, -0x1.85efab514f394p-1},
                                                    {-0x1.6p-1, -0x1.3157dfe9f715bp-1},
                                                    {-0x1p-2, -0x1.f597ea69a1c86p-3},
                                                    {-0x1p-20, -0x1.ffffffffff555p-21},
                                                    {0x0.0000000000001p-1022, 0x0.0000000000001p-1022},
                                                    {0x1.4f8b588e368f1p-17, 0x1.4f8b588e06854p-17},
                                                    {0x1.999999999999ap-4, 0x1.983d7795f413ap-4},
                                                    {0x1p-1, 0x1.d9353d7568af3p-2},
                                                    {0x1.5ffffca501acbp-1, 0x1.3157ddc07b861p-1},
                                                    {0x1.8p-1, 0x1.45323e552f228p-1},
                                                    {0x1.8p+0, 0x1.cf6f9786df577p-1},
                                                    {0x1.8p+1, 0x1.fd77d111a0bp-1},
                                                    {0x1.2p+3, 0x1.fffffefa59d78p-1},
                                                    {0x1.28p+4, 0x1.ffffffffffffep-1},
                                                    {0x1.6p+4, 0x1p+0}}};

constexpr std::array<Known<float>, 14> known_log_f32{{{0x1p-149F, -0x1.9d1dap+6F},
                                                      {0x1.b38fb8p-127F, -0x1.5dfe3p+6F},
                                                      {0x1.0624dep-10F, -0x1.ba18aap+2F},
                                                      {0x1.99999ap-2F, -0x1.d5240ep-1F},
                                                      {0x1.6a09e6p-1F, -0x1.62e432p-2F},
                                                      {0x1.e66666p-1F, -0x1.a431dcp-5F},
                                                      {0x1.fffffep-1F, -0x1p-24F},
                                                      {0x1.000002p+0F, 0x1.fffffep-24F},
                                                      {0x1.4cccccp+0F, 0x1.0ca936p-2F},
                                                      {0x1.6a09e8p+0F, 0x1.62e434p-2F},
                                                      {0x1.8p+1F, 0x1.193ea8p+0F},
                                                      {0x1.9p+6F, 0x1.26bb1cp+2F},
                                                      {0x1.88a2p+15F, 0x1.5a65ap+3F},
                                                      {0x1.c363ccp+127F, 0x1.62632cp+6F}}};

constexpr std::array<Known<double>, 16> known_log{{{0x0.0000000000001p-1022, -0x1.74385446d71c3p+9},
                                                   {0x0.012688b70e62bp-1022, -0x1.64e69394d9508p+9},
                                                   {0x1p-1022, -0x1.6232bdd7abcd2p+9},
                                                   {0x1.79ca10c924223p-67, -0x1.7069e2aa2aa5bp+5},
                                                   {0x1.47ae147ae147bp-7, -0x1.26bb1bbb55515p+2},
                                                   {0x1p-1, -0x1.62e42fefa39efp-1},
                                                   {0x1.6a09e667f3bccp-1, -0x1.62e42fefa39f1p-2},
                                                   {0x1.fae147ae147aep-1, -0x1.495453e6fd4bcp-7},
                                                   {0x1.fffffffffffffp-1, -0x1p-53},
                                                   {0x1.0000000000001p+0, 0x1.fffffffffffffp-53},
                                                   {0x1.199999999999ap+0, 0x1.8663f793c46ccp-4},
                                                   {0x1.6a09e667f3bcdp+0, 0x1.62e42fefa39fp-2},
                                                   {0x1p+1, 0x1.62e42fefa39efp-1},
                                                   {0x1.4p+3, 0x1.26bb1bbb55516p+1},
                                                   {0x1.81cd6c8b43958p+13, 0x1.2d79559791e31p+3},
                                                   {0x1.7e43c8800759cp+996, 0x1.5963447f87fb5p+9}}};

constexpr std::array<Known<double>, 16> known_cos_pi{{{0x1p-34, 0x1p+0},
                                                      {0x1.999999999999ap-4, 0x1.e6f0e134454ffp-1},
                                                      {0x1.ffcb923a29c78p-3, 0x1.6a270327df6a2p-1},
                                                      {0x1.0a3d70a3d70a4p-2, 0x1.5e7cf55112013p-1},
                                                      {0x1.5555555555555p-2, 0x1p-1},
                                                      {0x1.ffffff543388fp-2, 0x1.0ddc5a5eea453p-25},
                                                      {0x1.051eb851eb852p-1, -0x1.015122df75864p-5},
                                                      {0x1.8p-1, -0x1.6a09e667f3bccp-1},
                                                      {0x1.ccccccccccccdp-1, -0x1.e6f0e134455p-1},
                                                      {0x1.3333333333333p+0, -0x1.9e3779b97f4a8p-1},
                                                      {0x1.800001ad7f29bp+0, 0x1.515370fced4f5p-22},
                                                      {0x1.b333333333333p+0, 0x1.2cf2304755a5dp-1},
                                                      {-0x1.e666666666666p+0, 0x1.e6f0e134454ffp-1},
                                                      {0x1.8b0a3d70a3d71p+3, 0x1.df28fe444a3ffp-2},
                                                      {0x1.e84804p+19, 0x1.d906bcf328d46p-1},
                                                      {0x1p+52, 0x1p+0}}};

/// The bits of f32 or f64.
auto bits(auto x)
{
  if constexpr (sizeof(x) == 4)
    return std::bit_cast<std::uint32_t>(x);
  else
    return std::bit_cast<std::uint64_t>(x);
}

template <class A, std::size_t n>
void check_known(const std::array<Known<A>, n>& all, auto function)
{
  for (const auto [argument, result] : all) {
    CAPTURE(argument);
    CHECK(bits(function(argument)) == bits(result));
  }
}

/// Two words that depend on @p i alone.
std::uint64_t random_bits(std::uint32_t i)
{
  const PhiloxWords words = philox({i, 0, 0, 0}, {7, 7});
  return std::uint64_t{words[0]} << 32 | words[1];
}

/// A random number of [low, high), the same on each machine.
double between(double low, double high, std::uint32_t i)
{
  return low + (high - low) * (static_cast<double>(random_bits(i) >> 11) * 0x1p-53);
}

constexpr std::uint32_t samples = 100'000;

/// The largest error of @p function in units in the last place of @p exact, over random numbers of [low, high).
double largest_error(auto function, auto exact, double low, double high)
{
  double worst = 0;
  for (std::uint32_t i = 0; i < samples; ++i) {
    const double x = between(low, high, i);
    const long double right = exact(static_cast<long double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(static_cast<double>(right)) - 52);
    worst = std::max(worst, static_cast<double>(std::abs(function(x) - right)) / ulp);
  }
  return worst;
}

// What a long double, and the C library's function of it, may be wrong by themselves: it is f64 on some machines.
constexpr double slack = std::numeric_limits<long double>::digits > 60 ? 0.01 : 1;

/// How many of 100,000 results in f32 differ from those of @p exact in f64, rounded, over random numbers of [low, high).
int differences(auto function, auto exact, double low, double high)
{
  int found = 0;
  for (std::uint32_t i = 0; i < samples; ++i) {
    const auto x = static_cast<float>(between(low, high, i));
    found += bits(function(x)) != bits(static_cast<float>(exact(static_cast<double>(x))));
  }
  return found;
}

/// A hash over the bits of 100,000 results: half of the arguments have any bits, the others lie within @p scale of zero.
template <class A>
std::uint64_t hash_of(auto function, double scale)
{
  using Bits = decltype(bits(A()));
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::uint32_t i = 0; i < samples; ++i) {
    const A any = std::bit_cast<A>(static_cast<Bits>(random_bits(i)));
    hash = (hash ^ bits(function(i % 2 == 0 ? any : static_cast<A>(between(-scale, scale, i))))) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return hash;
}

constexpr auto portable_exp = [](auto x) { return portable::exp(x); };
constexpr auto portable_tanh = [](auto x) { return portable::tanh(x); };
constexpr auto portable_log = [](auto x) { return portable::log(x); };
constexpr auto portable_cos_pi = [](double x) { return portable::cos_pi(x); };

}  // namespace

TEST_CASE("portable math: gives known bits for chosen arguments")
{
  check_known(known_exp_f32, portable_exp);
  check_known(known_exp, portable_exp);
  check_known(known_tanh_f32, portable_tanh);
  check_known(known_tanh, portable_tanh);
  check_known(known_log_f32, portable_log);
  check_known(known_log, portable_log);
  check_known(known_cos_pi, portable_cos_pi);
}

TEST_CASE("portable math: gives known bits for any arguments")
{
  CHECK(hash_of<float>(portable_exp, 128) == 0x9ad5104062d0608);
  CHECK(hash_of<float>(portable_tanh, 8) == 0xa73b8fa28eba28d2);
  CHECK(hash_of<float>(portable_log, 4) == 0xdd1fbcf061b3e144);
  CHECK(hash_of<double>(portable_exp, 1024) == 0x148ae8c303d5567b);
  CHECK(hash_of<double>(portable_tanh, 8) == 0x3a1ee385322800ce);
  CHECK(hash_of<double>(portable_log, 4) == 0x244c6655b86ac239);
  CHECK(hash_of<double>(portable_cos_pi, 4) == 0xa7245656c88dc3c);
}

TEST_CASE("portable math: the compiler computes the same bits")
{
  STATIC_REQUIRE(portable::exp(known_exp[9].argument) == known_exp[9].result);
  STATIC_REQUIRE(portable::exp(known_exp_f32[9].argument) == known_exp_f32[9].result);
  STATIC_REQUIRE(portable::tanh(known_tanh[9].argument) == known_tanh[9].result);
  STATIC_REQUIRE(portable::tanh(known_tanh_f32[9].argument) == known_tanh_f32[9].result);
  STATIC_REQUIRE(portable::log(known_log[9].argument) == known_log[9].result);
  STATIC_REQUIRE(portable::log(known_log_f32[9].argument) == known_log_f32[9].result);
  STATIC_REQUIRE(portable::cos_pi(known_cos_pi[9].argument) == known_cos_pi[9].result);
}

TEMPLATE_TEST_CASE("portable math: special values", "", float, double)
{
  using A = TestType;
  const auto same = [](A x, A y) { return bits(x) == bits(y); };
  for (const A any_nan : {quiet_nan<A>, -quiet_nan<A>, std::numeric_limits<A>::signaling_NaN()}) {
    CHECK(same(portable::exp(any_nan), quiet_nan<A>));
    CHECK(same(portable::tanh(any_nan), quiet_nan<A>));
    CHECK(same(portable::log(any_nan), quiet_nan<A>));
  }
  CHECK(same(portable::exp(A(0)), 1));
  CHECK(same(portable::exp(-A(0)), 1));
  CHECK(same(portable::exp(infinity<A>), infinity<A>));
  CHECK(same(portable::exp(-infinity<A>), 0));
  CHECK(same(portable::exp(std::numeric_limits<A>::max()), infinity<A>));
  CHECK(same(portable::exp(std::numeric_limits<A>::lowest()), 0));
  CHECK(same(portable::exp(std::numeric_limits<A>::denorm_min()), 1));

  CHECK(same(portable::tanh(A(0)), A(0)));
  CHECK(same(portable::tanh(-A(0)), -A(0)));
  CHECK(same(portable::tanh(infinity<A>), 1));
  CHECK(same(portable::tanh(-infinity<A>), -1));
  CHECK(same(portable::tanh(std::numeric_limits<A>::max()), 1));
  CHECK(same(portable::tanh(-std::numeric_limits<A>::denorm_min()), -std::numeric_limits<A>::denorm_min()));

  CHECK(same(portable::log(A(1)), A(0)));
  CHECK(same(portable::log(A(0)), -infinity<A>));
  CHECK(same(portable::log(-A(0)), -infinity<A>));
  CHECK(same(portable::log(infinity<A>), infinity<A>));
  CHECK(same(portable::log(-infinity<A>), quiet_nan<A>));
  CHECK(same(portable::log(-std::numeric_limits<A>::denorm_min()), quiet_nan<A>));
}

TEST_CASE("portable exp: overflows and underflows where it should")
{
  // log(2^1024) = 709.78..., log(2^-1075) = -745.13..., half of the smallest number
  CHECK(portable::exp(0x1.62e42fefa39efp+9) < infinity<double>);
  CHECK(portable::exp(0x1.62e42fefa39f0p+9) == infinity<double>);
  CHECK(portable::exp(-0x1.74910d52d3051p+9) == 0x1p-1074);
  CHECK(portable::exp(-0x1.74910d52d3052p+9) == 0);
  // log(2^128 - 2^103) = 88.72..., log(2^-150) = -103.97...
  CHECK(portable::exp(0x1.62e42ep+6F) == 0x1.ffff08p+127F);
  CHECK(portable::exp(0x1.62e430p+6F) == infinity<float>);
  CHECK(portable::exp(-0x1.9fe368p+6F) == 0x1p-149F);
  CHECK(portable::exp(-0x1.9fe36ap+6F) == 0);
}

TEST_CASE("portable cos_pi: is exact at multiples of a half, also large ones, and NaN where there is no angle")
{
  for (const double x : {0.0, -0.0, 2.0, -4.0, 0x1p53, 0x1p53 - 2, 1e300})
    CHECK(bits(portable::cos_pi(x)) == bits(1.0));
  for (const double x : {1.0, -3.0, 0x1p53 - 1, 0x1p52 + 1}) CHECK(bits(portable::cos_pi(x)) == bits(-1.0));
  for (const double x : {0.5, -1.5, 2.5, 0x1p51 + 0.5}) CHECK(bits(portable::cos_pi(x)) == bits(0.0));
  for (const double x : {infinity<double>, -infinity<double>, quiet_nan<double>, -quiet_nan<double>})
    CHECK(bits(portable::cos_pi(x)) == bits(quiet_nan<double>));
}

TEST_CASE("portable power: has the value of repeated multiplication, for negative exponents too")
{
  STATIC_REQUIRE(portable::power(10, 22) == 1e22);  // the last power of ten that f64 holds
  CHECK(portable::power(0.9, 0) == 1);
  CHECK(portable::power(0, 0) == 1);
  CHECK(portable::power(0.5, 1074) == 0x1p-1074);
  CHECK(portable::power(2, -10) == 0x1p-10);
  CHECK(portable::power(-3, 3) == -27);
  CHECK(portable::power(2, std::numeric_limits<std::int64_t>::max()) == infinity<double>);
  CHECK(portable::power(2, std::numeric_limits<std::int64_t>::min()) == 0);
  CHECK(bits(portable::power(-quiet_nan<double>, 3)) == bits(quiet_nan<double>));
  for (const double base : {0.9, 0.95, 0.999})
    for (const std::int64_t n : {1, 7, 100, 1023, 5000}) {
      const long double right = std::pow(static_cast<long double>(base), static_cast<long double>(n));
      CHECK(std::abs(portable::power(base, n) / right - 1) <= (static_cast<long double>(n) + 1) * 0x1p-53L);
    }
}

TEST_CASE("portable math: errors in f64 are within the bounds of the header")
{
  const auto exact_exp = [](auto x) { return std::exp(x); };
  CHECK(largest_error(portable_exp, exact_exp, -1, 1) < 0.85 + slack);
  CHECK(largest_error(portable_exp, exact_exp, -708, 709) < 0.85 + slack);
  const auto exact_tanh = [](auto x) { return std::tanh(x); };
  CHECK(largest_error(portable_tanh, exact_tanh, -1.5, 1.5) < 1.5 + slack);
  CHECK(largest_error(portable_tanh, exact_tanh, -20, 20) < 1.5 + slack);
  const auto exact_log = [](auto x) { return std::log(x); };
  CHECK(largest_error(portable_log, exact_log, 0.5, 2) < 1.1 + slack);
  CHECK(largest_error(portable_log, exact_log, 0, 1e6) < 1.1 + slack);
  // As a sine, so that pi is multiplied by the distance to a zero of the result, which is exact.
  const auto exact_cos = [](auto x) { return -std::sin(3.141592653589793238462643383279502884L * (1.5L - x)); };
  CHECK(largest_error(portable_cos_pi, exact_cos, 1, 1.75) < 1.2 + slack);
  CHECK(largest_error(portable_cos_pi, exact_cos, 1.4999, 1.5001) < 1.2 + slack);
}

TEST_CASE("portable math: results in f32 are those of the C library in f64, rounded")
{
  const auto in_f64 = [](auto function) { return [=](double x) { return function(x); }; };
  CHECK(differences(portable_exp, in_f64([](auto x) { return std::exp(x); }), -104, 89) == 0);
  CHECK(differences(portable_exp, in_f64([](auto x) { return std::exp(x); }), -1, 1) == 0);
  CHECK(differences(portable_tanh, in_f64([](auto x) { return std::tanh(x); }), -10, 10) == 0);
  CHECK(differences(portable_tanh, in_f64([](auto x) { return std::tanh(x); }), -0.7, 0.7) == 0);
  CHECK(differences(portable_log, in_f64([](auto x) { return std::log(x); }), 0, 3e38) == 0);
  CHECK(differences(portable_log, in_f64([](auto x) { return std::log(x); }), 0.5, 2) == 0);
}

TEMPLATE_TEST_CASE("portable math: symmetry and order", "", float, double)
{
  using A = TestType;
  int fallen = 0, asymmetric = 0;
  // Steps of about three units in the last place around points where the formula, or its interval, changes.
  for (const A centre : {A(0.34657359), A(0.6875), A(1), A(1.4142135), A(5.5)}) {
    const A step = 3 * std::numeric_limits<A>::epsilon() * centre;
    for (int i = -2000; i < 2000; ++i) {
      const A x = centre + static_cast<A>(i) * step, next = centre + static_cast<A>(i + 1) * step;
      fallen += portable::exp(next) < portable::exp(x) || portable::exp(-next) > portable::exp(-x);
      fallen += portable::log(next) < portable::log(x) || portable::tanh(next) < portable::tanh(x);
      asymmetric += portable::tanh(-x) != -portable::tanh(x);
      asymmetric += portable::cos_pi(-x) != portable::cos_pi(x) || portable::cos_pi(double{x} + 2) > 1;
    }
  }
  CHECK(fallen == 0);
  CHECK(asymmetric == 0);
}
