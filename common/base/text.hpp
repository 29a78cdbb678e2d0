#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/source_location.hpp"

/// @file
/// Formatting of numbers, comparison of words that a user typed, and text as a terminal shows it.

namespace rankwise {

/// 3528704 as "3,528,704".
std::string group_digits(std::int64_t value);

/// Number of letters to insert, delete, replace or swap with a neighbour to turn @p a into @p b.
/// @cost    O(|a| |b|) time and memory.
/// @source  the "optimal string alignment" distance: Damerau 1964, doi:10.1145/363958.363994.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate that @p word was probably meant to be: the nearest by edit distance (the first among equals).
/// Empty if even the nearest differs in more than a third of its letters; two differences are always allowed.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "a", "a or b", "a, b or c".
std::string one_of(const std::vector<std::string>& words);

/// The absolute path that a relative one stands for, as " (/home/me/run.h5)": for messages about files. Empty for
/// an absolute path.
std::string looked_for(const std::string& path);

/// A source line as messages show it: "common/base/text.hpp:12".
std::string text_of(SourceLocation where);

/// The parts of a text between the characters @p at, the last one only if it is not empty: split("a,b", ',') is a, b.
std::vector<std::string> split(const std::string& text, char at);

/// The text without blanks at its ends.
std::string_view trimmed(std::string_view text);

/// Number of bytes of the well-formed UTF-8 character at the beginning of @p text; 0 when there is none.
/// @source  The Unicode Standard, table 3-7.
std::size_t character_bytes(std::string_view text);

/// The text as a terminal may show it: control characters other than tabs and line ends, bytes that are not UTF-8, and characters that
/// turn the direction of a text are written in hexadecimal: an escape as "\x1b", the override of a direction as "\u{202e}".
std::string printable(std::string_view text);

/// Writes printable(@p text) to a stream, and flushes it.
/// @return  true if all of it has been written.
bool print_text(std::FILE* out, std::string_view text);

/// Writes a text to a stream as it is, with its control characters, and flushes it: what is drawn on a terminal.
/// @return  true if all of it has been written.
bool draw_text(std::FILE* out, std::string_view text);

}  // namespace rankwise
