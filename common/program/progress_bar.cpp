#include "common/program/progress_bar.hpp"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

#include "common/base/text.hpp"
#include "common/program/terminal.hpp"

namespace rankwise {

ProgressBar::ProgressBar(std::string unit) : unit_(std::move(unit)), terminal_(on_drawing_terminal(STDERR_FILENO))
{
}

void ProgressBar::show(std::int64_t done, std::int64_t total, const std::string& note)
{
  if (!terminal_ || total <= 0) return;
  std::string text = fmt::format("{} of {} {}{}", done, total, unit_, note);
  // A line that wraps cannot be replaced: first the bar becomes shorter, then the text.
  const std::size_t columns = std::max<std::size_t>(terminal_columns(STDERR_FILENO), 1) - 1, frame = 3;  // "[] "
  if (columns > text.size() + frame) {
    const auto width = static_cast<std::int64_t>(std::min<std::size_t>(columns - text.size() - frame, 20));
    const std::int64_t filled = std::clamp<std::int64_t>(done * width / total, 0, width);
    text = fmt::format("[{:.<{}}] {}", std::string(static_cast<std::size_t>(filled), '#'), width, text);
  }
  draw_text(stderr, fmt::format("\r{:.{}}\033[K", text, columns));
  shown_ = true;
}

void ProgressBar::clear()
{
  if (!shown_) return;
  draw_text(stderr, clear_picture);
  shown_ = false;
}

}  // namespace rankwise
