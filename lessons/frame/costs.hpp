#pragma once

#include <string>
#include <vector>

#include "common/memory_ledger.hpp"
#include "common/messages/traffic_ledger.hpp"

/// @file
/// What a run costs, from the sizes alone.

namespace rankwise {

/// What one rank sends along an axis of the ranks in one step.
struct SentPerStep {
  std::string axis;     ///< name of the group: "world", or "dp", "tp", "pp"
  std::string what;     ///< as "a step"
  Traffic traffic;      ///< of this rank
  std::string formula;  ///< in letters, for people
};

/// What rank r of N needs and sends. `costs.hpp` of each lesson computes it from options, r and N, without starting N ranks.
struct Costs {
  TierBytes kept{};               ///< at the end of a step, by tier and category
  TierBytes most{};               ///< peak within a step
  std::vector<SentPerStep> sent;  ///< in one step, by axis
};

}  // namespace rankwise
