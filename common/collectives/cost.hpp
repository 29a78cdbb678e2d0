#pragma once

#include <cstdint>
#include <string_view>

#include "common/memory/tensor.hpp"
#include "common/messages/algorithm.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/topology.hpp"

/// @file
/// What a collective costs, by formula.

namespace rankwise {

/// One collective call as a formula sees it.
struct CollectiveShape {
  std::string_view
      collective;           ///< "reduce-scatter", "all-gather", "all-reduce", "broadcast", "reduce" or "barrier"
  Algorithm algorithm;      ///< by which it is made
  DType type = DType::f32;  ///< of the elements
  std::int64_t count = 0;   ///< n
  int root = 0;             ///< of broadcast and reduce
};

/// What one rank sends in a collective, by the formulas in the algorithms' comments: all levels together.
/// @param shape     which call.
/// @param topology  of the N ranks.
/// @param rank      0 <= rank < N.
Traffic expected_traffic(const CollectiveShape& shape, const Topology& topology, int rank);

/// The scratch that a group and its levels keep after a call.
struct ScratchBytes {
  std::int64_t own = 0;      ///< of the group itself
  std::int64_t inside = 0;   ///< of the ranks of a node, where the algorithm is hierarchical
  std::int64_t between = 0;  ///< of the nodes
};

/// The scratch that a group keeps after such a call, level by level.
ScratchBytes scratch_by_level(const CollectiveShape& shape, const Topology& topology, int rank);
/// The scratch that a group keeps after such calls, all levels together: each keeps the largest that it was asked for.
std::int64_t scratch_bytes(const std::vector<CollectiveShape>& calls, const Topology& topology, int rank);

/// The straight line t = alpha + beta b through measured times of messages of b bytes.
struct AlphaBeta {
  double alpha_s = 0;          ///< latency of a message
  double beta_s_per_byte = 0;  ///< one over the bandwidth

  /// The time of one message.
  double time_s(std::int64_t bytes) const { return alpha_s + beta_s_per_byte * static_cast<double>(bytes); }
};

}  // namespace rankwise
