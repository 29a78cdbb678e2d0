#pragma once

#include <atomic>
#include <cstddef>
#include <string_view>

/// @file
/// Terminals: detection, width and escape sequences.

namespace rankwise {

/// True if output to a descriptor, STDOUT_FILENO or STDERR_FILENO, reaches a terminal. A launcher passes output on
/// through pipes or terminals of its own: then the launcher's descriptor counts, which a rank can see on Linux and
/// on the launcher's machine only.
bool on_terminal(int descriptor);

/// True if a descriptor reaches a terminal that understands escape sequences: TERM names one, and not "dumb".
bool on_drawing_terminal(int descriptor);

/// Width of the terminal that a descriptor reaches: 0 if there is none, 80 if the terminal does not say.
std::size_t terminal_columns(int descriptor);

/// True if rank 0 draws, or has drawn, a picture below the cursor of the terminal, so that text has to clear it
/// first.
inline std::atomic<bool> drawn_below_cursor = false;
/// Text for a terminal that clears the line of the cursor and all below.
inline constexpr std::string_view clear_picture = "\r\033[J";

/// True if standard output may be coloured: it reaches a drawing terminal, and NO_COLOR (https://no-color.org) is
/// not set.
bool wants_colour();

}  // namespace rankwise
