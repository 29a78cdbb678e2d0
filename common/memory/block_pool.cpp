#include "common/memory/block_pool.hpp"

#include <algorithm>
#include <utility>

namespace rankwise {

namespace {

constexpr std::int64_t spare_part = 8;  // 1 / spare_part of the peak in use may be held in addition

}  // namespace

BlockPool::BlockPool(std::function<void*(std::int64_t)> make, std::function<void(void*)> free)
    : make_(std::move(make)), free_(std::move(free))
{
}

BlockPool::~BlockPool()
{
  for (const Kept& kept : kept_) free_(kept.block);
}

void* BlockPool::take(std::int64_t bytes)
{
  const std::lock_guard lock(mutex_);
  const auto last =
      std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) { return kept.bytes == bytes; });
  if (last != kept_.rend()) {
    void* const block = last->block;
    kept_.erase(std::next(last).base());
    kept_bytes_ -= bytes;
    used_bytes_ += bytes;
    return block;
  }

  const std::int64_t most = std::max(most_bytes_, used_bytes_ + bytes);
  while (used_bytes_ + bytes + kept_bytes_ > most + most / spare_part) {
    free_(kept_.front().block);
    kept_bytes_ -= kept_.front().bytes;
    kept_.erase(kept_.begin());
  }
  void* const block = make_(bytes);
  used_bytes_ += bytes;
  most_bytes_ = most;
  return block;
}

void BlockPool::give_back(void* block, std::int64_t bytes) noexcept
{
  const std::lock_guard lock(mutex_);
  kept_.push_back({block, bytes});
  kept_bytes_ += bytes;
  used_bytes_ -= bytes;
}

}  // namespace rankwise
