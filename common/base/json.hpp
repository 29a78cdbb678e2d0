#pragma once

#include <iosfwd>
#include <string_view>

#include <nlohmann/json.hpp>

/// @file
/// JSON, by nlohmann-json. Its parser and its writer are compiled once, in json.cpp: they take a compiler seconds.

extern template class nlohmann::detail::serializer<nlohmann::json>;

namespace rankwise {

/// The value of a JSON text.
/// @failure  nlohmann::json::exception unless it is one; Error if it is nested more than a thousand deep.
nlohmann::json parse_json(std::string_view text);

/// The value of a JSON file; is_discarded() unless it is one, or if it is nested more than a thousand deep.
nlohmann::json parse_json(std::istream& file);

}  // namespace rankwise
