#pragma once

#include <numbers>

#include "common/base/portable_math.hpp"

/// @file
/// GELU, its slope and tanh of the reference families, on the host and on a GPU. They are computed in f64 and rounded once.

namespace rankwise {

/// sqrt(2/pi).
constexpr double gelu_factor = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;

/// tanh(sqrt(2/pi) (x + 0.044715 x^3)).
constexpr double gelu_tanh(double x)
{
  return portable::tanh(gelu_factor * (x + 0.044715 * x * x * x));
}

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), rounded to the type of @p of, f32 or f64.
template <class A>
constexpr A gelu(A of)
{
  const double x = of;
  return static_cast<A>(0.5 * x * (1 + gelu_tanh(x)));
}

/// The derivative of gelu(): (1 + t)/2 + x/2 t' with t =
/// gelu_tanh(x) and t' = (1 - t^2) sqrt(2/pi) (1 + 3 0.044715 x^2).
template <class A>
constexpr A gelu_slope(A at)
{
  const double x = at, t = gelu_tanh(x);
  const double dt = (1 - t * t) * gelu_factor * (1 + 3 * 0.044715 * x * x);
  return static_cast<A>(0.5 * (1 + t) + 0.5 * x * dt);
}

/// tanh(x), rounded to the type of @p x.
template <class A>
constexpr A rounded_tanh(A x)
{
  return static_cast<A>(portable::tanh(static_cast<double>(x)));
}

}  // namespace rankwise
