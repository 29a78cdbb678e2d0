#pragma once

#include <vector>

#include "common/messages/topology.hpp"

/// @file
/// For tests of formulas: ranks that are not there.

namespace rankwise::testing {

/// The topology of N ranks that would share one machine.
/// @param ranks_per_node  as for topology_of().
inline Topology one_machine(int ranks, int ranks_per_node = 0)
{
  return topology_of(std::vector<int>(static_cast<std::size_t>(ranks)), ranks_per_node);
}

}  // namespace rankwise::testing
