#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>

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

/// A number, 0 or more, with a unit, as 312TFLOP/s or 2 us: the unit may have a prefix from p to P, or
/// from Ki to Ti.
struct Quantity {
  const char* unit = "";  ///< without prefix, as "B/s"
  double value = 0;       ///< in this unit
  /// The value.
  operator double() const { return value; }
};

/// The variable of an option, of one of the types that options have.
using OptionVariable = std::variant<std::reference_wrapper<int>, std::reference_wrapper<std::int64_t>,
                                    std::reference_wrapper<std::uint32_t>, std::reference_wrapper<double>,
                                    std::reference_wrapper<bool>, std::reference_wrapper<std::string>,
                                    std::reference_wrapper<Bytes>, std::reference_wrapper<Quantity>>;

/// Parses a value strictly: the whole text must match, values out of range are errors, and f64 must be finite.
///
/// Integers are decimal; bool is "true" or "false"; Bytes is an integer with an optional unit, a Quantity has one.
/// @param text      the user's text.
/// @param variable  has the value on success.
/// @return  empty on success, else what was expected, to complete "x is not ...", as "a whole number".
std::string read_value(const std::string& text, OptionVariable variable);

/// The value as a user would type it. Inverse of read_value().
std::string show_value(const OptionVariable& variable);
/// A number of bytes as a user would type it, with the largest unit that divides it.
std::string show_value(const Bytes& bytes);
/// A quantity as a user would type it, with four digits.
std::string show_value(const Quantity& quantity);

/// The value for a report: Bytes and a Quantity as a number.
nlohmann::json json_value(const OptionVariable& variable);

/// Placeholder for the value in a help text, as "INTEGER"; empty for a bool.
std::string kind_of_value(const OptionVariable& variable);

}  // namespace rankwise
