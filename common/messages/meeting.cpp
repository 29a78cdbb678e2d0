#include "common/messages/meeting.hpp"

#include <ctime>
#include <limits>
#include <unistd.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "common/program/wait.hpp"

namespace rankwise {

namespace {

/// Sleeps until wake_all(), for a millisecond at most; returns at once if @p word no longer equals @p value.
void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value)
{
  const timespec longest{0, 1'000'000};
#ifdef __linux__
  // Without FUTEX_PRIVATE_FLAG, because the word is shared between processes, which have it at different addresses.
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &longest, nullptr, 0);
#else
  if (word.load() == value) nanosleep(&longest, nullptr);
#endif
}

/// Wakes all processes that sleep on a word.
void wake_all([[maybe_unused]] const std::atomic<std::uint32_t>& word)
{
#ifdef __linux__
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
#endif
}

}  // namespace

void Meeting::meet(int ranks, std::uint32_t round, const std::function<void()>& meanwhile)
{
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks)) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round);
    if (sleepers_.load() > 0) wake_all(round_);
    return;
  }
  if (spin([&] { return round_.load(std::memory_order_acquire) == round; })) return;
  // seq_cst: either the last to arrive sees this rank among the sleepers, or this rank sees the new round.
  sleepers_.fetch_add(1);
  for (bool first = true; round_.load() != round; first = false) {
    if (!first) meanwhile();
    sleep_while(round_, round - 1);
  }
  sleepers_.fetch_sub(1);
}

}  // namespace rankwise
