#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

/// @file
/// Option values: how each type is parsed, shown and reported.

namespace rankwise {

/// A number of bytes, optionally with a unit: 64MB = 64 * 10^6, 64MiB = 64 * 2^20, also kB, GB, TB, KiB, GiB, TiB.
struct Bytes {
  std::int64_t value = 0;  ///< bytes, >= 0
  /// Same number of bytes.
  friend bool operator==(const Bytes&, const Bytes&) = default;
};

/// A number, 0 or more, with a unit, as 312TFLOP/s or 2 us: the unit may have a prefix from p to P.
struct Quantity {
  const char* unit = "";  ///< without prefix, as "B/s"
  double value = 0;       ///< in this unit
  /// The value.
  operator double() const { return value; }
};

/// Parses a value strictly: the whole text must match, values out of range are errors, and f64 must be finite.
///
/// Integers are decimal; bool is "true" or "false"; Bytes is an integer with an optional unit, a Quantity has one.
/// @param[in]  text   the user's text.
/// @param[out] value  T is int, std::int64_t, std::uint32_t, double, bool, std::string, Bytes or Quantity; valid on success.
/// @return  empty on success, else what was expected, to complete "x is not ...", as "a whole number".
template <class T>
std::string read_value(const std::string& text, T& value);

/// The value as a user would type it: Bytes with the largest unit that divides them, a Quantity with four digits. Inverse of read_value().
template <class T>
std::string show_value(const T& value);

/// The value for a report: Bytes and a Quantity as a number.
template <class T>
nlohmann::json json_value(const T& value);

/// Placeholder for the value in a help text, as "INTEGER"; empty for a bool.
template <class T>
std::string kind_of_value();

}  // namespace rankwise
