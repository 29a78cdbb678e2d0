#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/memory/tensor.hpp"
#include "common/messages/algorithm.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/topology.hpp"

/// @file
/// Cost formulas of collectives.

namespace rankwise {

/// The parameters of a collective call on which its cost depends.
struct CollectiveShape {
  /// "reduce-scatter", "all-gather", "all-reduce", "broadcast", "reduce", "all-to-all", "all-to-all-v" or "barrier"
  std::string_view collective;
  Algorithm algorithm;                 ///< its algorithm
  DType type = DType::f32;             ///< element type
  std::int64_t count = 0;              ///< n
  int root = 0;                        ///< root rank of broadcast and reduce
  std::vector<std::int64_t> counts{};  ///< all-to-all-v only, in place of count: elements to each rank
  std::int64_t leaves = 0;             ///< terms of a PartialSum (GroupSetup::leaves); 0 for any other sum
  std::int64_t times = 1;              ///< how often a step makes the call
};

/// Traffic of one rank in a collective, by the formulas in the algorithms' comments; sum over all levels.
/// @param shape     the call.
/// @param topology  nodes of the N ranks.
/// @param rank      0 <= rank < N.
Traffic expected_traffic(const CollectiveShape& shape, const Topology& topology, int rank);
/// Traffic of one rank in all calls of a step, each made CollectiveShape::times.
Traffic expected_traffic(const std::vector<CollectiveShape>& calls, const Topology& topology, int rank);

/// Scratch bytes that a group and its two levels keep after a call.
struct ScratchBytes {
  std::int64_t own = 0;      ///< the group itself
  std::int64_t inside = 0;   ///< its group inside(), if the algorithm is hierarchical
  std::int64_t between = 0;  ///< its group between(), if the algorithm is hierarchical
};

/// Scratch bytes that a group keeps after this call, by level.
ScratchBytes scratch_by_level(const CollectiveShape& shape, const Topology& topology, int rank);
/// Scratch bytes that a group keeps after these calls, sum over all levels: each level keeps its largest.
std::int64_t scratch_bytes(const std::vector<CollectiveShape>& calls, const Topology& topology, int rank);

/// The linear model t = alpha + beta b of the time of a message of b bytes, fitted to measurements.
struct AlphaBeta {
  double alpha_s = 0;          ///< latency of a message
  double beta_s_per_byte = 0;  ///< 1 / bandwidth

  /// Time of one message.
  double time_s(std::int64_t bytes) const { return alpha_s + beta_s_per_byte * static_cast<double>(bytes); }
};

}  // namespace rankwise
