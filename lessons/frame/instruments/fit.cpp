#include "lessons/frame/instruments/fit.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace rankwise {

double median(std::vector<double> times)
{
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

Fit fit_line(std::span<const MessageTime> times)
{
  // Divided by t, each message asks for alpha (1 / t) + beta (b / t) = 1: two normal equations.
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const MessageTime& m : times) {
    const double a = 1 / m.time_s, b = static_cast<double>(m.bytes) / m.time_s;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a1 += a;
    b1 += b;
  }
  const double determinant = aa * bb - ab * ab;
  Fit fit{{(a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant}};
  // Times of a busy machine may fall with the bytes. Neither term is negative: the best line has one of them alone.
  if (fit.line.alpha_s < 0) fit.line = {0, b1 / bb};
  if (fit.line.beta_s_per_byte < 0) fit.line = {a1 / aa, 0};
  double squares = 0;
  for (const MessageTime& m : times) squares += std::pow(fit.line.time_s(m.bytes) / m.time_s - 1, 2);
  fit.residual = std::sqrt(squares / static_cast<double>(times.size()));
  return fit;
}

std::string describe_bandwidth(const AlphaBeta& line, std::span<const MessageTime> times)
{
  if (line.beta_s_per_byte > 0) return fmt::format("{:.2f} GB/s", 1e-9 / line.beta_s_per_byte);
  double rate = 0;
  for (const MessageTime& m : times) rate = std::max(rate, static_cast<double>(m.bytes) / m.time_s);
  return fmt::format("at least {:.2f} GB/s", 1e-9 * rate);
}

}  // namespace rankwise
