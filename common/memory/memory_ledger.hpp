#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/error.hpp"

/// @file
/// The memory ledger: counts every buffer of this rank from allocation to release.

namespace rankwise {

/// Purpose of a buffer.
enum class Category : std::uint8_t {
  parameters,     ///< weights that the model computes with
  gradients,      ///< gradients of the parameters
  optimizer,      ///< AdamW's two moments, and master weights if any
  activations,    ///< values kept from the forward for the backward pass, tokens included
  communication,  ///< message buffers
  workspace,      ///< scratch of forward and backward pass, allocated for the whole run
  staging,        ///< buffers for copies between tiers
  exact_sums,     ///< extra accumulators of exact arithmetic
};
/// Number of categories.
constexpr int category_count = 8;

/// Storage tier of a buffer.
enum class Tier : std::uint8_t { device, host, disk };
/// Number of tiers.
constexpr int tier_count = 3;

/// The name that is printed and written to reports: "parameters", ..., "exact".
std::string_view name_of(Category category);
/// The name that is printed and written to reports: "device", "host" or "disk".
std::string_view name_of(Tier tier);

/// Bytes by category: a plan, a formula, or one tier of the ledger.
struct CategoryBytes {
  std::array<std::int64_t, category_count> bytes{};  ///< in the order of Category

  /// The bytes of one category.
  std::int64_t& operator[](Category c) { return bytes[static_cast<std::size_t>(c)]; }
  /// The bytes of one category.
  std::int64_t operator[](Category c) const { return bytes[static_cast<std::size_t>(c)]; }
  /// Adds category by category.
  CategoryBytes& operator+=(const CategoryBytes& other);
  /// Sum over all categories.
  std::int64_t total() const;
  /// Lines "parameters 882,176" with the total last; empty categories are omitted.
  std::string table() const;
  /// True if all categories have the same bytes.
  friend bool operator==(const CategoryBytes&, const CategoryBytes&) = default;
};

/// Bytes by tier.
using TierBytes = std::array<CategoryBytes, tier_count>;
/// Bytes of one tier.
inline CategoryBytes& in_tier(Tier tier, TierBytes& bytes)
{
  return bytes[static_cast<std::size_t>(tier)];
}
/// Bytes of one tier.
inline const CategoryBytes& in_tier(Tier tier, const TierBytes& bytes)
{
  return bytes[static_cast<std::size_t>(tier)];
}

/// Rejects a run whose planned memory exceeds the limit.
/// @param planned      bytes on the device tier, by category.
/// @param limit_bytes  capacity of the device; 0 for no limit.
/// @param remedy       advice for the user, one sentence.
/// @throws UserError   with the bytes by category.
void check_memory_limit(const CategoryBytes& planned, std::int64_t limit_bytes, const std::string& remedy);

/// Change of the device tier's contents, as a trace shows it.
struct MemoryEvent {
  EventTime time;       ///< time of the change
  CategoryBytes bytes;  ///< allocated from then on, until the next event
};

/// Current and peak bytes of this rank by category and tier. Buffers register themselves, on any thread: a
/// CommunicationQueue's thread allocates message buffers while another thread computes.
class MemoryLedger {
 public:
  /// @param limit_bytes  capacity of the device tier; 0 for no limit.
  explicit MemoryLedger(std::int64_t limit_bytes = 0) : limit_bytes_(limit_bytes) {}

  /// Counts a new buffer.
  /// @throws Error when the device tier would exceed its limit, as an allocation fails on a full device.
  void enter(Category category, Tier tier, std::int64_t bytes, std::string_view what);
  /// Counts the release of a buffer.
  void leave(Category category, Tier tier, std::int64_t bytes) noexcept;

  /// Bytes allocated now.
  CategoryBytes current(Tier tier) const;
  /// Peak bytes of each category; the peaks may be at different times.
  CategoryBytes peak(Tier tier) const;
  /// Peak of the total over all categories.
  std::int64_t peak_total(Tier tier) const;
  /// Capacity of the device tier; 0 for no limit.
  std::int64_t limit_bytes() const { return limit_bytes_; }

  /// Starts recording the device tier as events, for a trace. The first event is the memory allocated now.
  void record();
  /// Events recorded so far, in order of time: one for each allocation and release on the device tier.
  std::vector<MemoryEvent> events() const;

 private:
  void keep_event(Tier tier);  // if recording; the lock is held

  mutable std::mutex mutex_;
  std::array<CategoryBytes, tier_count> current_{};
  std::array<CategoryBytes, tier_count> peak_{};
  std::array<std::int64_t, tier_count> peak_total_{};
  const std::int64_t limit_bytes_;
  bool recording_ = false;
  std::vector<MemoryEvent> events_;
};

}  // namespace rankwise
