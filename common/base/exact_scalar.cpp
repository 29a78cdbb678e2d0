#include "common/base/exact_scalar.hpp"

#include <limits>

namespace rankwise {

double ExactScalar::value() const
{
  const Integer high = this->high();
  const auto low = static_cast<std::uint64_t>(low_);
  if (spoiled_ != 0 || !in_range(high)) return std::numeric_limits<double>::quiet_NaN();
  constexpr Integer fits = Integer{1} << 62;
  if (-fits <= high && high < fits) return static_cast<double>((high << 64) + low) * 0x1p-80;
  // The lower half only breaks ties, so the lowest bit of the upper half can represent it.
  return static_cast<double>(high | (low != 0 ? 1 : 0)) * 0x1p-16;
}

ExactScalar::Lanes ExactScalar::lanes() const
{
  const Integer high = this->high();
  const auto low = static_cast<std::uint64_t>(low_), middle = static_cast<std::uint64_t>(high & 0xFFFF'FFFF);
  return {static_cast<std::int64_t>(low & 0xFFFF'FFFF'FFFF), static_cast<std::int64_t>(low >> 48 | middle << 16),
          static_cast<std::int64_t>(high >> 32), spoiled_ + (in_range(high) ? 0 : 1)};
}

ExactScalar ExactScalar::from_lanes(const Lanes& lanes)
{
  ExactScalar sum;
  sum.low_ = lanes[0] + (static_cast<Integer>(lanes[1] & 0xFFFF) << 48);
  sum.high_ = (lanes[1] >> 16) + (static_cast<Integer>(lanes[2]) << 32);
  sum.spoiled_ = lanes[3];
  return sum;
}

}  // namespace rankwise
