#pragma once

#include <array>
#include <cstdint>

/// @file
/// A sum whose bits do not depend on the order of its terms.

namespace rankwise {

/// A sum of f64 terms kept as an integer in units of 2^-80.
///
/// Integer addition is associative, so any split of the terms over threads, shards or ranks, in any order, gives the
/// same bits. Squared norms and losses are summed this way. A term is rounded once, to the nearest multiple of 2^-80
/// (8.3e-25); it lies below 2^46 (7e13), the sum below 2^78 (3e23). What is not finite, or larger, makes the sum NaN.
class ExactScalar {
 public:
  /// The 64-bit lanes in which a sum travels; adding them lane by lane, as integers, adds the sums.
  using Lanes = std::array<std::int64_t, 4>;

  /// Adds one term.
  constexpr void add(double term)
  {
    if (!(term < limit && term > -limit)) {
      ++spoiled_;
      return;
    }
    const auto units = static_cast<Integer>(to_whole(term * 0x1p80));  // below 2^126
    low_ += static_cast<std::uint64_t>(units);
    high_ += units >> 64;
  }

  /// Adds another sum.
  constexpr ExactScalar& operator+=(const ExactScalar& other)
  {
    low_ += other.low_;
    high_ += other.high_;
    spoiled_ += other.spoiled_;
    return *this;
  }

  /// The sum as f64, rounded to nearest; NaN when a term or the sum left the range.
  double value() const;

  /// The sum in lanes of 48, 48 and the remaining bits, and the number of terms that could not be added. The spare
  /// bits let 2^15 ranks be added lane by lane without a carry.
  Lanes lanes() const;
  /// The sum that has these lanes, or the total of the sums whose lanes were added to give them.
  static ExactScalar from_lanes(const Lanes& lanes);

 private:
  __extension__ typedef __int128 Integer;

  /// Rounds to a whole number, ties to even: from 2^52 on an f64 is one.
  static constexpr double to_whole(double x)
  {
    constexpr double whole = 0x1p52;
    if (x >= whole || x <= -whole) return x;
    return x < 0 ? (x - whole) + whole : (x + whole) - whole;
  }
  /// The upper half, with what the lower half carries into it.
  Integer high() const { return high_ + (low_ >> 64); }
  /// Whether a sum with this upper half lies within 2^78.
  static bool in_range(Integer high) { return -(Integer{1} << 94) <= high && high < Integer{1} << 94; }

  static constexpr double limit = 0x1p46;  // of a term
  // The sum is high 2^64 + low. Each half has room for the carries of 2^63 terms, so none is lost in any order.
  Integer low_ = 0, high_ = 0;
  std::int64_t spoiled_ = 0;  // terms that could not be added
};

}  // namespace rankwise
