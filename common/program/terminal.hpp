#pragma once

#include <atomic>
#include <cstddef>
#include <string_view>

/// @file
/// Whether a person reads the output.

namespace rankwise {

/// Whether what this process writes to a descriptor, STDOUT_FILENO or STDERR_FILENO, reaches a terminal. A launcher passes
/// output on through pipes or terminals of its own, so then its own descriptor counts; on Linux, where it can be seen. Of ranks on
/// other machines it cannot.
bool on_terminal(int descriptor);

/// Whether a descriptor reaches a terminal that understands escape sequences: TERM names one, and not "dumb".
bool on_drawing_terminal(int descriptor);

/// Width of the terminal that a descriptor reaches: 0 if there is none, 80 if the terminal does not say.
std::size_t terminal_columns(int descriptor);

/// Whether rank 0 draws, or has drawn, a picture below the cursor of the terminal, so that text has to clear it first.
inline std::atomic<bool> drawn_below_cursor = false;
/// Text for a terminal that clears the line of the cursor and all below.
inline constexpr std::string_view clear_picture = "\r\033[J";

/// Whether standard output may be coloured: it reaches a drawing terminal, and NO_COLOR (https://no-color.org) is not set.
bool wants_colour();

}  // namespace rankwise
