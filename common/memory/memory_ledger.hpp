#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.hpp"

/// @file
/// The memory ledger: every buffer of this rank, counted when it is made and when it goes.

namespace rankwise {

/// What a buffer is for.
enum class Category : std::uint8_t {
  parameters,     ///< the weights that the model computes with
  gradients,      ///< their gradients
  optimizer,      ///< the two moments, and master weights where there are any
  activations,    ///< what the forward pass keeps for the backward pass, tokens included
  communication,  ///< message buffers
  workspace,      ///< scratch of the passes, alive for the whole run
  staging,        ///< memory that feeds copies between tiers
  exact_sums,     ///< what exact arithmetic needs on top
};
/// Number of categories.
constexpr int category_count = 8;

/// Where a buffer lives.
enum class Tier : std::uint8_t { device, host, disk };
/// Number of tiers.
constexpr int tier_count = 3;

/// The name that is printed and written to reports: "parameters", ..., "exact".
std::string_view name_of(Category category);
/// The name that is printed and written to reports: "device", "host" or "disk".
std::string_view name_of(Tier tier);

/// Bytes by category; a plan, a formula or one column of the ledger.
struct CategoryBytes {
  std::array<std::int64_t, category_count> bytes{};  ///< in the order of Category

  /// The bytes of one category.
  std::int64_t& operator[](Category c) { return bytes[static_cast<std::size_t>(c)]; }
  /// The bytes of one category.
  std::int64_t operator[](Category c) const { return bytes[static_cast<std::size_t>(c)]; }
  /// The bytes of both in every category.
  CategoryBytes& operator+=(const CategoryBytes& other);
  /// All categories together.
  std::int64_t total() const;
  /// Lines "parameters 882,176", the total last; categories without bytes are left out.
  std::string table() const;
  /// The same bytes in every category.
  friend bool operator==(const CategoryBytes&, const CategoryBytes&) = default;
};

/// Bytes by tier.
using TierBytes = std::array<CategoryBytes, tier_count>;
/// Those of one tier.
inline CategoryBytes& in_tier(Tier tier, TierBytes& bytes)
{
  return bytes[static_cast<std::size_t>(tier)];
}
/// Those of one tier.
inline const CategoryBytes& in_tier(Tier tier, const TierBytes& bytes)
{
  return bytes[static_cast<std::size_t>(tier)];
}

/// Refuses a run whose plan does not fit.
/// @param planned      bytes of the device tier, by category.
/// @param limit_bytes  the size of the device; 0 for no limit.
/// @param remedy       what the user can do about it, one sentence.
/// @throws UserError   with the table of categories.
void check_memory_limit(const CategoryBytes& planned, std::int64_t limit_bytes, const std::string& remedy);

/// What the device tier held from one moment on, as a trace shows it.
struct MemoryEvent {
  std::int64_t time_ns;  ///< of event_clock_ns() (clock.hpp)
  CategoryBytes bytes;   ///< from then on, until the next event
};

/// Current and peak bytes of this rank by category and tier. Buffers enter and leave by themselves, on any thread: that of
/// a CommunicationQueue makes message buffers while another computes.
class MemoryLedger {
 public:
  /// @param limit_bytes  what the device tier holds; 0 for no limit.
  explicit MemoryLedger(std::int64_t limit_bytes = 0) : limit_bytes_(limit_bytes) {}

  /// Counts a new buffer.
  /// @throws Error when the device tier would exceed its limit: as on a device, the allocation fails.
  void enter(Category category, Tier tier, std::int64_t bytes, std::string_view what);
  /// Counts a buffer that goes.
  void leave(Category category, Tier tier, std::int64_t bytes) noexcept;

  /// Bytes alive now.
  CategoryBytes current(Tier tier) const;
  /// The most bytes that were alive at a time, each category by itself.
  CategoryBytes peak(Tier tier) const;
  /// The most bytes that were alive at a time, all categories together.
  std::int64_t peak_total(Tier tier) const;
  /// The size of the device tier; 0 for no limit.
  std::int64_t limit_bytes() const { return limit_bytes_; }

  /// From now on the device tier is kept as events, for a trace. The first one is what it holds now.
  void record();
  /// The events kept so far, one for each buffer of the device tier that entered or left, in the order of time.
  std::vector<MemoryEvent> events() const;

 private:
  void keep_event(Tier tier);  // if that is recorded; under the lock

  mutable std::mutex mutex_;
  std::array<CategoryBytes, tier_count> current_{};
  std::array<CategoryBytes, tier_count> peak_{};
  std::array<std::int64_t, tier_count> peak_total_{};
  const std::int64_t limit_bytes_;
  bool recording_ = false;
  std::vector<MemoryEvent> events_;
};

}  // namespace rankwise
