#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// @file
/// Numbers and words as people read and write them.

namespace rankwise {

/// 3528704 as "3,528,704".
std::string group_digits(std::int64_t value);

/// A number of bytes as tables show it: the digits in groups of three, without a unit (the table's unit row has it).
std::string format_bytes(std::int64_t bytes);

/// The number of letters to insert, delete or replace that make @p a into @p b; two neighbours swapped count as one.
/// @cost    O(|a| |b|) time and memory.
/// @source  the "optimal string alignment" distance: Damerau 1964, doi:10.1145/363958.363994.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate that @p word was probably meant to be: the nearest by edit distance (the first among equals), or the
/// empty text when even the nearest differs in more than a third of its letters (but two may always differ).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "a", "a or b", "a, b or c".
std::string one_of(const std::vector<std::string>& words);

/// The text without blanks at its ends.
std::string_view trimmed(std::string_view text);

}  // namespace rankwise
