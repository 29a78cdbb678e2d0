#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/algorithm.hpp"

/// @file
/// Which ranks share a node. Formulas and groups both ask topology_of_job(), so that they always agree.

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
  /// That of some of these ranks: a node is what it was, and numbered anew.
  /// @param ranks  as they are numbered here, those of a group in its order.
  Topology among(const std::vector<int>& ranks) const;
};

/// The topology of the ranks of these machines.
/// @param machine_of      by rank: any number that is different for each machine.
/// @param ranks_per_node  0 for machines as they are; else each run of so many ranks on a machine counts as a node.
/// @param device          where the ranks' memory is.
Topology topology_of(const std::vector<int>& machine_of, int ranks_per_node, DeviceKind device = DeviceKind::cpu);

/// The topology of all ranks of the job, which each knows from its start on: it sends no message.
/// @param ranks_per_node, device  as for topology_of().
Topology topology_of_job(int ranks_per_node, DeviceKind device = DeviceKind::cpu);

/// The topology of N ranks: that of the job if it has as many; else they are on one machine.
/// @param ranks_per_node, device  as for topology_of().
Topology topology_of_ranks(int N, int ranks_per_node, DeviceKind device);

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
