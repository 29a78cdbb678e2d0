#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

/// @file
/// The values that an option can have: how each type is read, shown and reported.

namespace rankwise {

/// A number of bytes that may be written with a unit: 64MB = 64 * 10^6, 64MiB = 64 * 2^20, also kB, GB, TB, KiB, GiB, TiB.
struct Bytes {
  std::int64_t value = 0;  ///< bytes, >= 0
  /// Same number of bytes.
  friend bool operator==(const Bytes&, const Bytes&) = default;
};

/// Reads a value strictly: nothing may be left over, nothing is rounded into range, f64 are finite.
///
/// Whole numbers are decimal; bool is "true" or "false"; Bytes is a whole number and a unit or none.
/// @param[in]  text   what the user wrote.
/// @param[out] value  T is int, std::int64_t, std::uint32_t, double, bool, std::string or Bytes; meaningful on success.
/// @return  the empty text on success, else what was expected, as in "x is not ...": "a whole number".
template <class T>
std::string read_value(const std::string& text, T& value);

/// The value as it would be typed: Bytes with the largest unit that divides them. read_value() gives it back.
template <class T>
std::string show_value(const T& value);

/// The value for a report: Bytes as a number.
template <class T>
nlohmann::json json_value(const T& value);

/// What stands for the value in a help text, as "INTEGER"; empty for a bool.
template <class T>
std::string kind_of_value();

}  // namespace rankwise
