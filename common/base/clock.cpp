#include "common/base/clock.hpp"

#include <utility>

namespace rankwise {

namespace {

template <class Clock>
std::int64_t now_ns()
{
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

std::function<std::int64_t()> virtual_now_ps;

}  // namespace

std::int64_t event_clock_ns()
{
  static const std::int64_t epoch_ns = now_ns<std::chrono::system_clock>() - now_ns<std::chrono::steady_clock>();
  return epoch_ns + now_ns<std::chrono::steady_clock>();
}

EventTime event_time()
{
  return {event_clock_ns(), virtual_now_ps ? virtual_now_ps() : 0};
}

void follow_virtual_clock(std::function<std::int64_t()> now_ps)
{
  virtual_now_ps = std::move(now_ps);
}

}  // namespace rankwise
