#include "common/memory/memory_ledger.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/format.h>

#include "common/base/text.hpp"

namespace rankwise {

std::string_view name_of(Category category)
{
  constexpr std::array<std::string_view, category_count> names{
      "parameters", "gradients", "optimizer", "activations", "communication", "workspace", "staging", "exact"};
  return names[static_cast<std::size_t>(category)];
}

std::string_view name_of(Tier tier)
{
  constexpr std::array<std::string_view, tier_count> names{"device", "host", "disk"};
  return names[static_cast<std::size_t>(tier)];
}

CategoryBytes& CategoryBytes::operator+=(const CategoryBytes& other)
{
  std::ranges::transform(bytes, other.bytes, bytes.begin(), std::plus<>());
  return *this;
}

std::int64_t CategoryBytes::total() const
{
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::string CategoryBytes::table() const
{
  std::string text;
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    if ((*this)[category] == 0) continue;
    text += fmt::format("{:<14}{:>18}\n", name_of(category), group_digits((*this)[category]));
  }
  return text + fmt::format("{:<14}{:>18}", "total", group_digits(total()));
}

void check_memory_limit(const CategoryBytes& planned, std::int64_t limit_bytes, const std::string& remedy)
{
  if (limit_bytes == 0 || planned.total() <= limit_bytes) return;
  throw UserError(fmt::format("--memory-limit={} is too small: this run needs {} bytes a rank.",
                              group_digits(limit_bytes), group_digits(planned.total())),
                  planned.table() + "\n" + remedy);
}

void MemoryLedger::enter(Category category, Tier tier, std::int64_t bytes, std::string_view what)
{
  const auto t = static_cast<std::size_t>(tier);
  const std::scoped_lock lock(mutex_);
  const std::int64_t total = current_[t].total() + bytes;
  if (tier == Tier::device && limit_bytes_ > 0 && total > limit_bytes_)
    throw Error(fmt::format("out of device memory: {} needs {} bytes, {} of {} are taken:\n{}", what,
                            group_digits(bytes), group_digits(current_[t].total()), group_digits(limit_bytes_),
                            current_[t].table()));
  current_[t][category] += bytes;
  peak_[t][category] = std::max(peak_[t][category], current_[t][category]);
  peak_total_[t] = std::max(peak_total_[t], total);
  keep_event(tier);
}

void MemoryLedger::leave(Category category, Tier tier, std::int64_t bytes) noexcept
{
  const std::scoped_lock lock(mutex_);
  current_[static_cast<std::size_t>(tier)][category] -= bytes;
  keep_event(tier);
}

CategoryBytes MemoryLedger::current(Tier tier) const
{
  const std::scoped_lock lock(mutex_);
  return current_[static_cast<std::size_t>(tier)];
}

CategoryBytes MemoryLedger::peak(Tier tier) const
{
  const std::scoped_lock lock(mutex_);
  return peak_[static_cast<std::size_t>(tier)];
}

std::int64_t MemoryLedger::peak_total(Tier tier) const
{
  const std::scoped_lock lock(mutex_);
  return peak_total_[static_cast<std::size_t>(tier)];
}

void MemoryLedger::record()
{
  const std::scoped_lock lock(mutex_);
  recording_ = true;
  keep_event(Tier::device);
}

std::vector<MemoryEvent> MemoryLedger::events() const
{
  const std::scoped_lock lock(mutex_);
  return events_;
}

void MemoryLedger::keep_event(Tier tier)
{
  if (recording_ && tier == Tier::device)
    events_.push_back({event_time(), current_[static_cast<std::size_t>(tier)]});
}

}  // namespace rankwise
