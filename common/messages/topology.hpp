#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/device.hpp"
#include "common/messages/algorithm.hpp"
#include "common/messages/communicator.hpp"

/// @file
/// Which ranks of a group share a node.

namespace rankwise {

/// The nodes of a group's ranks. A node is a machine, or the part of it that `--ranks-per-node` makes one.
struct Topology {
  std::vector<int> node_of;             ///< by rank; nodes are numbered in the order in which ranks meet them
  int nodes = 1;                        ///< how many
  DeviceKind device = DeviceKind::cpu;  ///< where their memory is

  /// The ranks of a node, in order.
  std::vector<int> ranks_of(int node) const;
  /// How many ranks each node has; 0 when they do not all have as many.
  int ranks_per_node() const;
};

/// The topology of N ranks that share one machine, without asking anybody.
/// @param ranks_per_node  as for find_topology().
/// @param device          where the ranks' memory is.
Topology one_machine(int ranks, int ranks_per_node, DeviceKind device = DeviceKind::cpu);

/// Finds out; all ranks of the communicator make this call.
/// @param ranks_per_node  0 for machines as they are; else each run of so many ranks on a machine counts as a node.
Topology find_topology(const Communicator& communicator, int ranks_per_node);

/// What an algorithm stands for: `auto` goes by topology and size, others are what they are.
/// @param algorithm   which.
/// @param topology    of the group's ranks.
/// @param collective  its name.
/// @param bytes       of a rank's vector.
Algorithm chosen_algorithm(Algorithm algorithm, const Topology& topology, std::string_view collective,
                           std::int64_t bytes);

/// From so many bytes on, the bytes and not the steps decide how long a message between nodes takes: `auto` then
/// chooses what sends the fewest.
inline constexpr std::int64_t large_message = 64 << 10;

}  // namespace rankwise
