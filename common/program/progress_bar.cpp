#include "common/program/progress_bar.hpp"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

#include "common/program/terminal.hpp"

namespace rankwise {

ProgressBar::ProgressBar(std::string unit) : unit_(std::move(unit)), terminal_(on_terminal(STDERR_FILENO)) {}

void ProgressBar::show(std::int64_t done, std::int64_t total, const std::string& note)
{
  if (!terminal_ || total <= 0) return;
  constexpr std::int64_t width = 20;
  const std::int64_t filled = std::clamp<std::int64_t>(done * width / total, 0, width);
  const std::string bar(static_cast<std::size_t>(filled), '#');
  std::fputs(fmt::format("\r[{:.<{}}] {} of {} {}{}\033[K", bar, width, done, total, unit_, note).c_str(), stderr);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressBar::clear()
{
  if (!shown_) return;
  std::fputs(clear_picture.data(), stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace rankwise
