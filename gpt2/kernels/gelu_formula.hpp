#pragma once

#include <cmath>
#include <numbers>

/// @file
/// GELU and its slope, on the host and on a GPU. The standard library's tanh() is not constexpr; the functions are
/// marked so because nvcc then compiles them for both.

namespace rankwise {

/// tanh(sqrt(2/pi) (x + 0.044715 x^3)) in the type of @p x, f32 or f64.
template <class A>
constexpr A gelu_tanh(A x)
{
  constexpr A sqrt_2_over_pi = static_cast<A>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  return std::tanh(sqrt_2_over_pi * (x + static_cast<A>(0.044715) * x * x * x));
}

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class A>
constexpr A gelu(A x)
{
  return static_cast<A>(0.5) * x * (1 + gelu_tanh(x));
}

/// The derivative of gelu(): (1 + t)/2 + x/2 t' with t =
/// gelu_tanh(x) and t' = (1 - t^2) sqrt(2/pi) (1 + 3 0.044715 x^2).
template <class A>
constexpr A gelu_slope(A x)
{
  constexpr A sqrt_2_over_pi = static_cast<A>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  const A t = gelu_tanh(x);
  const A dt = (1 - t * t) * sqrt_2_over_pi * (1 + 3 * static_cast<A>(0.044715) * x * x);
  return static_cast<A>(0.5) * (1 + t) + static_cast<A>(0.5) * x * dt;
}

// The reference families compute these functions in f64 and round: the last bit of tanh() in f32 depends on the version of
// the C library, and is another one on a GPU.

/// gelu(), rounded once.
template <class A>
constexpr A rounded_gelu(A x)
{
  return static_cast<A>(gelu(static_cast<double>(x)));
}

/// gelu_slope(), rounded once.
template <class A>
constexpr A rounded_gelu_slope(A x)
{
  return static_cast<A>(gelu_slope(static_cast<double>(x)));
}

/// tanh(), rounded once.
template <class A>
constexpr A rounded_tanh(A x)
{
  return static_cast<A>(std::tanh(static_cast<double>(x)));
}

}  // namespace rankwise
