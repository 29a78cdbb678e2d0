#pragma once

#include <cstdint>
#include <vector>

/// @file
/// Contiguous ranges, and the one rule by which n elements are divided into N shards.

namespace rankwise {

/// The half-open range [first, first + count) of elements, sequences or tokens.
struct Range {
  std::int64_t first = 0;  ///< first member
  std::int64_t count = 0;  ///< number of members, >= 0

  /// One past the last member.
  constexpr std::int64_t end() const { return first + count; }
  /// True if it has no members.
  constexpr bool empty() const { return count == 0; }
  /// True if @p i is a member.
  constexpr bool contains(std::int64_t i) const { return first <= i && i < end(); }
  /// Same first member and same count.
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// The members that two ranges share; count 0 when there are none.
constexpr Range intersect(Range a, Range b)
{
  const std::int64_t first = a.first > b.first ? a.first : b.first;
  const std::int64_t end = a.end() < b.end() ? a.end() : b.end();
  return {first, end > first ? end - first : 0};
}

/// Number of members of all ranges together.
inline std::int64_t elements_of(const std::vector<Range>& ranges)
{
  std::int64_t sum = 0;
  for (const Range& range : ranges) sum += range.count;
  return sum;
}

/// n elements divided into N contiguous shards whose sizes differ by at most one: the first n mod N are larger.
///
/// Allocation, optimizer, checkpoint and every collective use this one mapping, so rank r always owns shard r.
class Partition {
 public:
  /// @param elements  n >= 0.
  /// @param shards  N >= 1.
  constexpr Partition(std::int64_t elements, std::int64_t shards) : elements_(elements), shards_(shards) {}

  /// n.
  constexpr std::int64_t elements() const { return elements_; }
  /// N.
  constexpr std::int64_t shards() const { return shards_; }

  /// The elements of shard @p r, 0 <= r < N.
  constexpr Range shard(std::int64_t r) const
  {
    const std::int64_t small = elements_ / shards_;
    const std::int64_t larger = elements_ % shards_;
    return {r * small + (r < larger ? r : larger), small + (r < larger ? 1 : 0)};
  }

  /// The shard that holds element @p i, 0 <= i < n.
  constexpr std::int64_t owner(std::int64_t i) const
  {
    const std::int64_t small = elements_ / shards_;
    const std::int64_t larger = elements_ % shards_;
    const std::int64_t in_larger = larger * (small + 1);
    return i < in_larger ? i / (small + 1) : larger + (i - in_larger) / small;
  }

 private:
  std::int64_t elements_;
  std::int64_t shards_;
};

/// One of several equal parts of a layer, a tensor or a batch: part @p index of @p count.
struct Part {
  int index = 0;  ///< 0 <= index < count
  int count = 1;  ///< >= 1
};

}  // namespace rankwise
