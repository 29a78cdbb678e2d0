#include "common/base/activity.hpp"

#include <atomic>

namespace rankwise {

namespace {

std::atomic<std::uint64_t> finished{0};
std::atomic<int> working{0};
std::atomic<const char*> phase{""};

}  // namespace

void note_progress() noexcept
{
  finished.fetch_add(1, std::memory_order_relaxed);
}

Working::Working() noexcept
{
  working.fetch_add(1, std::memory_order_relaxed);
}

Working::~Working()
{
  note_progress();  // first, so that an observer that sees no work under way sees the progress
  working.fetch_sub(1, std::memory_order_release);
}

Phase::Phase(const char* text) noexcept : outer_(phase.exchange(text)) {}

Phase::~Phase()
{
  phase = outer_;
}

const char* Phase::current() noexcept
{
  return phase;
}

Activity current_activity() noexcept
{
  const int now_working = working.load(std::memory_order_acquire);
  return {finished.load(std::memory_order_relaxed), now_working};
}

}  // namespace rankwise
