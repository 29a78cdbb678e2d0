#include "common/program/option_value.hpp"

#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/base/json.hpp"

namespace rankwise {

namespace {

// The units of Bytes, larger ones first.
constexpr std::pair<const char*, std::int64_t> byte_units[] = {{"TiB", 1LL << 40}, {"TB", 1'000'000'000'000},
                                                               {"GiB", 1LL << 30}, {"GB", 1'000'000'000},
                                                               {"MiB", 1LL << 20}, {"MB", 1'000'000},
                                                               {"KiB", 1LL << 10}, {"kB", 1'000},
                                                               {"B", 1},           {"", 1}};

// The prefixes of a Quantity, first those with which it is shown, smaller ones first.
constexpr std::size_t shown_prefixes = 10;
constexpr std::pair<const char*, double> prefixes[] = {
    {"p", 1e-12}, {"n", 1e-9}, {"u", 1e-6}, {"m", 1e-3},    {"", 1},        {"k", 1e3},     {"M", 1e6},
    {"G", 1e9},   {"T", 1e12}, {"P", 1e15}, {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};

template <std::integral T>
std::string read(const std::string& text, T& value)
{
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, value);
  if (error == std::errc{} && end == text_end) return "";
  if (error == std::errc::result_out_of_range && end == text_end)
    return fmt::format("a whole number of {} bits", 8 * sizeof(T));
  return std::unsigned_integral<T> ? "a whole number, 0 or more" : "a whole number";
}

std::string read(const std::string& text, double& value)
{
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, value);
  if (error == std::errc{} && end == text_end && std::isfinite(value)) return "";
  if (error == std::errc::result_out_of_range && end == text_end) return "0 or a number from 1e-307 to 1e308";
  return "a finite number";
}

std::string read(const std::string& text, bool& value)
{
  if (text != "true" && text != "false") return "true or false";
  value = text == "true";
  return "";
}

std::string read(const std::string& text, std::string& value)
{
  value = text;
  return "";
}

std::string read(const std::string& text, Bytes& value)
{
  const char* const expected = "a number of bytes, as 1000, 512kB, 64MB (10^6), 64MiB (2^20) or 1GB";
  const char* const text_end = text.data() + text.size();
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text_end, count);
  if (error != std::errc{} || text[0] == '-') return expected;
  for (const auto& [unit, bytes] : byte_units) {
    if (unit != std::string(end, text_end)) continue;
    if (count > std::numeric_limits<std::int64_t>::max() / bytes) return "less than 9 * 10^18 bytes";
    value.value = count * bytes;
    return "";
  }
  return expected;
}

std::string read(const std::string& text, Quantity& value)
{
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, value.value);
  std::string_view unit(end, text_end);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [prefix, power] : prefixes) {
    if (error != std::errc{} || unit != std::string(prefix) + value.unit) continue;
    value.value *= power;
    if (std::isfinite(value.value) && value.value >= 0) return "";
  }
  if (*value.unit == '\0') return "a number, 0 or more";
  return fmt::format("a number with its unit, {0} or with a prefix k{0}, M{0}, G{0}, T{0}, P{0}, m{0}, u{0}",
                     value.unit);
}

}  // namespace

std::string read_value(const std::string& text, OptionVariable variable)
{
  return std::visit([&](auto value) { return read(text, value.get()); }, variable);
}

std::string show_value(const Bytes& bytes)
{
  for (const auto& [unit, size] : byte_units) {
    if (bytes.value != 0 && bytes.value % size == 0) return fmt::format("{}{}", bytes.value / size, unit);
  }
  return "0";
}

std::string show_value(const Quantity& quantity)
{
  if (*quantity.unit == '\0') return fmt::format("{:.4g}", quantity.value);
  std::size_t at = 0;
  while (at + 1 < shown_prefixes && std::abs(quantity.value) >= prefixes[at + 1].second) ++at;
  return fmt::format("{:.4g}{}{}", quantity.value / prefixes[at].second, prefixes[at].first, quantity.unit);
}

std::string show_value(const OptionVariable& variable)
{
  return std::visit(
      [](auto value) {
        if constexpr (requires { value.get().value; })
          return show_value(value.get());
        else
          return fmt::format("{}", value.get());
      },
      variable);
}

nlohmann::json json_value(const OptionVariable& variable)
{
  return std::visit(
      [](auto value) -> nlohmann::json {
        if constexpr (requires { value.get().value; })
          return value.get().value;
        else
          return value.get();
      },
      variable);
}

std::string kind_of_value(const OptionVariable& variable)
{
  constexpr const char* kinds[] = {"INTEGER", "INTEGER", "INTEGER", "NUMBER", "", "TEXT", "SIZE", "QUANTITY"};
  return kinds[variable.index()];
}

}  // namespace rankwise
