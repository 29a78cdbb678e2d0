#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// @file
/// By which algorithm collectives are made.

namespace rankwise {

/// `--collectives`. Rank r always ends with shard r of the one Partition, whichever it is.
enum class Algorithm : unsigned char {
  ring,          ///< each rank talks to its neighbours only; every link carries the same
  tree,          ///< through rank 0, along a binomial tree
  halving,       ///< recursive halving and doubling, neighbours first: the order of exact sums
  hierarchical,  ///< inside each node, then between nodes, then inside again
  shared,        ///< ranks of one node read each other's memory
  library,       ///< the collectives of the MPI library
  automatic,     ///< `auto`: chosen by size and topology
};

/// "ring", ..., "auto".
std::string_view name_of(Algorithm algorithm);

/// All of them by name, for OptionTable::add_choice().
const std::vector<std::pair<std::string, Algorithm>>& algorithms();

}  // namespace rankwise
