#pragma once

#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/memory_ledger.hpp"
#include "tests/judge/driver.hpp"

/// @file
/// Ranges of elements and bytes of memory as inputs and outputs of an exercise.

namespace rankwise::judge {

/// Its first element and the number of them.
inline Json pair_of(Range range)
{
  return Json::array({range.first, range.count});
}

/// The same of several ranges.
inline Json pairs_of(const std::vector<Range>& ranges)
{
  Json pairs = Json::array();
  for (const Range& range : ranges) pairs.push_back(pair_of(range));
  return pairs;
}

/// The range of pair_of().
inline Range range_of(const Json& pair)
{
  return {pair[0].get<std::int64_t>(), pair[1].get<std::int64_t>()};
}

/// Bytes on the device by category, now and at the most.
inline Json bytes_of(const MemoryLedger& ledger)
{
  return {{"bytes", ledger.current(Tier::device).bytes}, {"most bytes", ledger.peak(Tier::device).bytes}};
}

}  // namespace rankwise::judge
