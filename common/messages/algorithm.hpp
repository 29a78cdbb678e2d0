#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// @file
/// The algorithms of collectives.

namespace rankwise {

/// `--collectives`. With every algorithm rank r ends up with shard r of the same Partition.
enum class Algorithm : unsigned char {
  ring,          ///< each rank talks to its two neighbours only; all links carry the same number of bytes
  tree,          ///< along a binomial tree, by way of rank 0
  halving,       ///< recursive halving and doubling, neighbours first: the order of exact sums
  hierarchical,  ///< within each node, then between nodes, then within nodes again
  shared,        ///< ranks of one node read each other's memory
  library,       ///< the collectives of the MPI library
  automatic,     ///< `auto`: chosen by message size and topology
  pairwise,      ///< all-to-all only: an exchange with each other rank, one after the other
  bruck,         ///< all-to-all only: log2 N messages of blocks that share a way
};

/// "ring", ..., "bruck".
std::string_view name_of(Algorithm algorithm);

/// The algorithms that perform every collective, by name, for OptionTable::add_choice().
const std::vector<std::pair<std::string, Algorithm>>& algorithms();

}  // namespace rankwise
