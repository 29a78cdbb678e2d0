#include "common/program/option_value.hpp"

#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace rankwise {

namespace {

// The units of Bytes, larger ones first.
constexpr std::pair<const char*, std::int64_t> byte_units[] = {{"TiB", 1LL << 40}, {"TB", 1'000'000'000'000},
                                                               {"GiB", 1LL << 30}, {"GB", 1'000'000'000},
                                                               {"MiB", 1LL << 20}, {"MB", 1'000'000},
                                                               {"KiB", 1LL << 10}, {"kB", 1'000},
                                                               {"B", 1},           {"", 1}};

template <std::integral T>
std::string read(const std::string& text, T& value)
{
  using Limits = std::numeric_limits<T>;
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, value);
  if (error == std::errc{} && end == text_end) return "";
  if (error == std::errc::result_out_of_range && end == text_end) {
    return fmt::format("a whole number from {} to {}", Limits::min(), Limits::max());
  }
  return Limits::min() == 0 ? "a whole number, 0 or more" : "a whole number";
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

}  // namespace

template <class T>
std::string read_value(const std::string& text, T& value)
{
  return read(text, value);
}

template <class T>
std::string show_value(const T& value)
{
  return fmt::format("{}", value);
}

template <>
std::string show_value(const Bytes& bytes)
{
  for (const auto& [unit, size] : byte_units) {
    if (bytes.value != 0 && bytes.value % size == 0) return fmt::format("{}{}", bytes.value / size, unit);
  }
  return "0";
}

template <class T>
nlohmann::json json_value(const T& value)
{
  return value;
}

template <>
nlohmann::json json_value(const Bytes& bytes)
{
  return bytes.value;
}

template <class T>
std::string kind_of_value()
{
  if constexpr (std::same_as<T, bool>) return "";
  if constexpr (std::same_as<T, std::string>) return "TEXT";
  if constexpr (std::same_as<T, Bytes>) return "SIZE";
  if constexpr (std::floating_point<T>) return "NUMBER";
  return "INTEGER";
}

template std::string read_value(const std::string&, int&);
template std::string show_value(const int&);
template nlohmann::json json_value(const int&);
template std::string kind_of_value<int>();
template std::string read_value(const std::string&, std::int64_t&);
template std::string show_value(const std::int64_t&);
template nlohmann::json json_value(const std::int64_t&);
template std::string kind_of_value<std::int64_t>();
template std::string read_value(const std::string&, std::uint32_t&);
template std::string show_value(const std::uint32_t&);
template nlohmann::json json_value(const std::uint32_t&);
template std::string kind_of_value<std::uint32_t>();
template std::string read_value(const std::string&, double&);
template std::string show_value(const double&);
template nlohmann::json json_value(const double&);
template std::string kind_of_value<double>();
template std::string read_value(const std::string&, bool&);
template std::string show_value(const bool&);
template nlohmann::json json_value(const bool&);
template std::string kind_of_value<bool>();
template std::string read_value(const std::string&, std::string&);
template std::string show_value(const std::string&);
template nlohmann::json json_value(const std::string&);
template std::string kind_of_value<std::string>();
template std::string read_value(const std::string&, Bytes&);
template std::string kind_of_value<Bytes>();

}  // namespace rankwise
