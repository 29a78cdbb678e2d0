#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/messages/traffic_ledger.hpp"
#include "common/report.hpp"
#include "common/session.hpp"

/// @file
/// Who sends how much to whom.

namespace rankwise {

/// What a rank sent for one purpose.
struct Sent {
  Traffic traffic;                       ///< all of it
  std::vector<std::int64_t> to_ranks{};  ///< (N) bytes to each rank of the job

  /// Both together.
  Sent& operator+=(const Sent& other);
  /// What was added to @p before to give this.
  Sent operator-(const Sent& before) const;
};

/// What this rank has sent so far in groups of these names, and in their levels.
/// @param ranks  N.
Sent sent_in(const TrafficLedger& ledger, const std::vector<std::string>& groups, int ranks);

/// Enters who sent how much to whom along an axis in the document, as `receivers[axis][rank][rank]` in bytes; a check that no
/// message left the axis. All ranks make this call.
/// @param sent   by this rank.
/// @param peers  the ranks of the job that it may send to.
void report_receivers(Report& report, const Session& session, const std::string& axis, const Sent& sent,
                      const std::vector<int>& peers);

}  // namespace rankwise
