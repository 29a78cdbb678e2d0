#include "common/base/clock.hpp"

namespace rankwise {

namespace {

template <class Clock>
std::int64_t now_ns()
{
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

std::int64_t event_clock_ns()
{
  static const std::int64_t epoch_ns = now_ns<std::chrono::system_clock>() - now_ns<std::chrono::steady_clock>();
  return epoch_ns + now_ns<std::chrono::steady_clock>();
}

}  // namespace rankwise
