#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/algorithm.hpp"

/// @file
/// Nodes of the ranks. Cost formulas and groups both use topology_of_job(), so they always agree.

namespace rankwise {

/// The nodes of a group's ranks. A node is a machine, or a subset of its ranks as set by `--ranks-per-node`.
struct Topology {
  std::vector<int> node_of;             ///< node of each rank; nodes are numbered by first appearance
  int nodes = 1;                        ///< number of nodes
  DeviceKind device = DeviceKind::cpu;  ///< device that holds their tensors

  /// The ranks of a node, in order.
  std::vector<int> ranks_of(int node) const;
  /// Position of a rank among the ranks of its node.
  int place_of(int rank) const;
  /// Number of ranks on each node; 0 if it differs between nodes.
  int ranks_per_node() const;
  /// Topology of a subset of these ranks; nodes are renumbered.
  /// @param ranks  the subset, numbered as here, in the order of its group.
  Topology among(const std::vector<int>& ranks) const;
};

/// Topology of ranks on the given machines.
/// @param machine_of      machine of each rank: any number that is distinct for each machine.
/// @param ranks_per_node  number of successive ranks of a machine that count as one node; 0: a node is a machine.
/// @param device          device that holds the ranks' tensors.
Topology topology_of(const std::vector<int>& machine_of, int ranks_per_node, DeviceKind device = DeviceKind::cpu);

/// Topology of all ranks of the job. Every rank has known it since its start, so this sends no message.
/// @param ranks_per_node, device  as for topology_of().
Topology topology_of_job(int ranks_per_node, DeviceKind device = DeviceKind::cpu);

/// Topology of N ranks: that of the job if it has N ranks; else all on one machine. Valid until this thread's next call.
/// @param ranks_per_node, device  as for topology_of().
const Topology& topology_of_ranks(int N, int ranks_per_node, DeviceKind device);

/// Resolves `auto` by topology and message size; any other algorithm is returned unchanged. An all-to-all has
/// algorithms of its own: unless it is given one of them or `library`, it is `bruck` for blocks of at most
/// `small_block` between four or more ranks, and else `pairwise`. All-to-all-v is never `bruck`.
/// @param algorithm   the requested algorithm.
/// @param topology    nodes of the group's ranks.
/// @param collective  name of the collective.
/// @param bytes       size of a rank's vector.
Algorithm chosen_algorithm(Algorithm algorithm, const Topology& topology, std::string_view collective,
                           std::int64_t bytes);

/// Size in bytes from which bandwidth rather than latency dominates the time of a message between nodes: `auto`
/// then chooses the algorithm that sends the fewest bytes.
inline constexpr std::int64_t large_message = 64 << 10;

/// Size in bytes of the largest block that an all-to-all sends by way of other ranks.
inline constexpr std::int64_t small_block = 1 << 10;

}  // namespace rankwise
