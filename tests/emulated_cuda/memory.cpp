#include "tests/emulated_cuda/memory.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "tests/emulated_cuda/machine.hpp"
#include "tests/emulated_cuda/sanitizer.hpp"

namespace emulated_cuda {

namespace {

constexpr std::size_t granule = 256;                // bytes to which allocations are aligned
constexpr std::size_t zone = 256;                   // guard bytes around them
constexpr std::size_t step = std::size_t{2} << 20;  // by which the used part of a region grows
constexpr std::uint16_t zone_word = 0x7fff;         // a NaN in every type

bool memory_is_open = false;

std::size_t rounded_up(std::size_t bytes, std::size_t to)
{
  return (bytes + to - 1) / to * to;
}

/// Bytes of an allocation and of what is kept around it.
std::size_t footprint(std::size_t bytes)
{
  return zone + rounded_up(bytes, granule) + zone;
}

/// The content of guard bytes: zone_word repeated.
const std::array<std::uint16_t, (zone + granule + zone) / 2> zone_pattern = [] {
  std::array<std::uint16_t, (zone + granule + zone) / 2> words{};
  words.fill(zone_word);
  return words;
}();

/// The pattern as it is from an address on, which may be odd.
const std::byte* pattern_at(const std::byte* address)
{
  return reinterpret_cast<const std::byte*>(zone_pattern.data()) + reinterpret_cast<std::uintptr_t>(address) % 2;
}

bool zone_is_whole(const std::byte* begin, const std::byte* end)
{
  return std::memcmp(begin, pattern_at(begin), static_cast<std::size_t>(end - begin)) == 0;
}

void fill_zone(std::byte* begin, const std::byte* end)
{
  std::memcpy(begin, pattern_at(begin), static_cast<std::size_t>(end - begin));
}

/// The allocation that holds all of these bytes, or whose end is @p data if there are none.
const Allocation* find_among(const std::map<std::byte*, Allocation>& live, const void* data, std::size_t bytes)
{
  const auto next = live.upper_bound(static_cast<std::byte*>(const_cast<void*>(data)));
  if (next == live.begin()) return nullptr;
  const Allocation& allocation = std::prev(next)->second;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - allocation.data);
  return offset <= allocation.bytes && bytes <= allocation.bytes - offset ? &allocation : nullptr;
}

/// Poisons an allocation for the host's code, or opens it; of a long one only both ends: marking 32 MiB of workspace at every
/// call takes longer than most calls.
void mark(const Allocation& allocation, void (*mark_bytes)(const void*, std::size_t))
{
  constexpr std::size_t end_bytes = 256 << 10;
  if (allocation.bytes <= 2 * end_bytes) return mark_bytes(allocation.data, allocation.bytes);
  mark_bytes(allocation.data, end_bytes);
  mark_bytes(allocation.data + allocation.bytes - end_bytes, end_bytes);
}

}  // namespace

std::byte* DeviceMemory::place_for(std::size_t bytes)
{
  std::byte* place = base_;
  for (const auto& [data, allocation] : live_) {
    if (place + footprint(bytes) <= data - zone) break;
    place = data - zone + footprint(allocation.bytes);
  }
  return place;
}

bool DeviceMemory::grow_to(std::byte* end)
{
  const auto needed = rounded_up(static_cast<std::size_t>(end - base_), step);
  if (needed <= reached_) return true;
  if (needed > reserved_) return false;
  if (mprotect(base_ + reached_, needed - reached_, PROT_READ | PROT_WRITE) != 0) return false;
  poison(base_ + reached_, needed - reached_);
  reached_ = needed;
  return true;
}

void* DeviceMemory::allocate(std::size_t bytes)
{
  const std::size_t rounded = rounded_up(bytes, granule);
  if (rounded < bytes || rounded > free_bytes()) return nullptr;
  if (base_ == nullptr) {
    reserved_ = rounded_up(2 * capacity_, step) + 32 * step;
    void* region = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return nullptr;
    base_ = static_cast<std::byte*>(region);
  }
  std::byte* const place = place_for(bytes);
  std::byte* const end = place + footprint(bytes);
  if (!grow_to(end)) return nullptr;
  std::byte* const data = place + zone;
  unpoison(place, footprint(bytes));
  std::memset(data, 0xff, bytes);
  fill_zone(place, data);
  fill_zone(data + bytes, end);
  poison(place, zone);
  poison(data + bytes, static_cast<std::size_t>(end - (data + bytes)));
  live_[data] = {data, bytes};
  mark(live_[data], poison);
  used_ += rounded;
  return data;
}

bool DeviceMemory::release(void* data)
{
  const auto found = live_.find(static_cast<std::byte*>(data));
  if (found == live_.end()) return false;
  const std::size_t bytes = found->second.bytes;
  unpoison(data, bytes);
  std::memset(data, 0xff, bytes);
  poison(data, bytes);
  used_ -= rounded_up(bytes, granule);
  live_.erase(found);
  return true;
}

const Allocation* DeviceMemory::find(const void* data, std::size_t bytes) const
{
  return find_among(live_, data, bytes);
}

const Allocation* DeviceMemory::damaged() const
{
  if (under_address_sanitizer) return nullptr;
  for (const auto& [data, allocation] : live_) {
    std::byte* const before = data - zone;
    if (!zone_is_whole(before, data) ||
        !zone_is_whole(data + allocation.bytes, before + footprint(allocation.bytes)))
      return &allocation;
  }
  return nullptr;
}

void DeviceMemory::open(bool is_open) const
{
  for (const auto& [data, allocation] : live_) mark(allocation, is_open ? unpoison : poison);
}

void* PinnedMemory::allocate(std::size_t bytes)
{
  void* data = nullptr;
  if (posix_memalign(&data, granule, bytes) != 0) return nullptr;
  std::memset(data, 0xff, bytes);
  live_[static_cast<std::byte*>(data)] = {static_cast<std::byte*>(data), bytes};
  return data;
}

bool PinnedMemory::release(void* data)
{
  if (live_.erase(static_cast<std::byte*>(data)) == 0) return false;
  std::free(data);
  return true;
}

const Allocation* PinnedMemory::find(const void* data, std::size_t bytes) const
{
  return find_among(live_, data, bytes);
}

void open_device_memory()
{
  if (memory_is_open) return;
  memory_is_open = true;
  for (const auto& device : machine().devices) device->memory.open(true);
}

void close_device_memory()
{
  if (!memory_is_open) return;
  memory_is_open = false;
  for (const auto& device : machine().devices) device->memory.open(false);
}

}  // namespace emulated_cuda
