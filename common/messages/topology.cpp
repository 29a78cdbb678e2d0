#include "common/messages/topology.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/messages/rehearsal/rehearsal.hpp"
#include "common/program/session.hpp"

namespace rankwise {

std::vector<int> Topology::ranks_of(int node) const
{
  std::vector<int> ranks;
  for (int r = 0; r < static_cast<int>(node_of.size()); ++r)
    if (node_of[static_cast<std::size_t>(r)] == node) ranks.push_back(r);
  return ranks;
}

int Topology::place_of(int rank) const
{
  const auto own = node_of.begin() + rank;
  return static_cast<int>(std::count(node_of.begin(), own, *own));
}

int Topology::ranks_per_node() const
{
  const int each = static_cast<int>(node_of.size()) / nodes;
  for (int node = 0; node < nodes; ++node)
    if (static_cast<int>(ranks_of(node).size()) != each) return 0;
  return each;
}

Topology Topology::among(const std::vector<int>& ranks) const
{
  std::vector<int> machines;
  for (const int r : ranks) machines.push_back(node_of.at(static_cast<std::size_t>(r)));
  return topology_of(machines, 0, device);
}

Topology topology_of(const std::vector<int>& machine_of, int ranks_per_node, DeviceKind device)
{
  Topology topology{.node_of = {}, .nodes = 0, .device = device};
  std::map<int, std::pair<int, int>> machines;  // by machine: number of ranks so far, node of the last of them
  for (const int machine : machine_of) {
    auto& [ranks, node] = machines[machine];
    const int place = ranks++;
    if (ranks_per_node > 0 ? place % ranks_per_node == 0 : place == 0) node = topology.nodes++;
    topology.node_of.push_back(node);
  }
  return topology;
}

Topology topology_of_job(int ranks_per_node, DeviceKind device)
{
  if (const Rehearsal* rehearsal = Rehearsal::current())
    return topology_of_ranks(rehearsal->rank.ranks, ranks_per_node, device);
  return topology_of(machine_of_ranks(), ranks_per_node, device);
}

const Topology& topology_of_ranks(int N, int ranks_per_node, DeviceKind device)
{
  const bool of_job = std::ssize(machine_of_ranks()) == N;
  static thread_local Topology last;  // a dry run asks for the same one once for each of its ranks
  static thread_local std::tuple<bool, int, int, DeviceKind> asked;
  if (const std::tuple wanted(of_job, N, ranks_per_node, device); of_job || asked != wanted) {
    last = topology_of(of_job ? machine_of_ranks() : std::vector<int>(static_cast<std::size_t>(N), 0),
                       ranks_per_node, device);
    asked = wanted;
  }
  return last;
}

Algorithm chosen_algorithm(Algorithm algorithm, const Topology& topology, std::string_view collective,
                           std::int64_t bytes)
{
  if (collective.starts_with("all-to-all") && algorithm != Algorithm::library) {
    const auto N = static_cast<std::int64_t>(topology.node_of.size());
    if (collective == "all-to-all-v" || algorithm == Algorithm::pairwise) return Algorithm::pairwise;
    const bool small = N > 3 && bytes <= N * small_block;
    return algorithm == Algorithm::bruck || small ? Algorithm::bruck : Algorithm::pairwise;
  }
  if (algorithm != Algorithm::automatic) return algorithm;
  if (topology.nodes == 1 && topology.device == DeviceKind::cpu) return Algorithm::shared;
  if (collective == "barrier" || bytes < large_message) return Algorithm::halving;
  return topology.nodes > 1 && topology.ranks_per_node() > 1 ? Algorithm::hierarchical : Algorithm::ring;
}

}  // namespace rankwise
