#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

/// @file
/// JSON, by nlohmann-json. Its parser and its writer are compiled once, in json.cpp: they take a compiler seconds.

extern template class nlohmann::detail::serializer<nlohmann::json>;

namespace rankwise {

/// The value of a JSON text.
/// @failure  nlohmann::json::exception unless it is one; Error if it is nested more than a thousand deep, because functions that
///           visit a value call themselves once a level.
nlohmann::json parse_json(std::string_view text);

/// A JSON value as text. Bytes of its texts that are not UTF-8, which names of files may hold, become U+FFFD.
/// @param indent  blanks by which each level is indented; none: all in one line.
std::string json_text(const nlohmann::json& value, int indent = -1);

}  // namespace rankwise
