#pragma once

#include <string>

/// @file
/// Catch2, version 2 or 3, under the names that the tests use. Tests include this header and none of Catch2's own.

#if __has_include(<catch2/catch_all.hpp>)

#include <catch2/catch_all.hpp>

using Catch::Approx;

inline auto Contains(const std::string& text)
{
  return Catch::Matchers::ContainsSubstring(text);
}

#else

#include <catch2/catch.hpp>

using Catch::Matchers::Contains;

#endif

using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
