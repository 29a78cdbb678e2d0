#pragma once

#include <array>
#include <cstdint>

/// @file
/// A sum that is bit-identical in whatever order its terms are added.

namespace rankwise {

/// A sum of f64 terms kept as an integer in units of 2^-80.
///
/// Integer addition is associative, so any split of the terms over threads, shards or ranks, in any order, gives
/// the same bits. Squared norms and losses are summed this way. A term is rounded once, to the nearest multiple of
/// 2^-80 (8.3e-25). Terms must be below 2^46 (7e13) in magnitude and the sum below 2^78 (3e23); a larger or
/// non-finite term makes the sum NaN.
class ExactScalar {
 public:
  /// The sum as 64-bit lanes, for messages; adding lanes as integers adds the sums.
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

  /// The sum as f64, rounded to nearest; NaN if a term or the sum was out of range.
  double value() const;

  /// The sum in lanes of 48, 48 and the remaining bits, and the number of terms that could not be added. The spare
  /// bits let 2^15 ranks be added lane by lane without a carry.
  Lanes lanes() const;
  /// The inverse of lanes(), also for lanes that were added up over ranks.
  static ExactScalar from_lanes(const Lanes& lanes);

 private:
  __extension__ typedef __int128 Integer;

  /// Rounds to an integer, ties to even; every f64 from 2^52 on is one.
  static constexpr double to_whole(double x)
  {
    constexpr double whole = 0x1p52;
    if (x >= whole || x <= -whole) return x;
    return x < 0 ? (x - whole) + whole : (x + whole) - whole;
  }
  /// The upper half plus the carry from the lower half.
  Integer high() const { return high_ + (low_ >> 64); }
  /// True if a sum with this upper half is below 2^78 in magnitude.
  static bool in_range(Integer high) { return -(Integer{1} << 94) <= high && high < Integer{1} << 94; }

  static constexpr double limit = 0x1p46;  // magnitude of a term
  // The sum is high 2^64 + low. Each half can absorb the carries of 2^63 terms, so none is lost in any order.
  Integer low_ = 0, high_ = 0;
  std::int64_t spoiled_ = 0;  // terms that could not be added
};

}  // namespace rankwise
