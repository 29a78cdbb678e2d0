#include "common/messages/topology.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace rankwise {

std::vector<int> Topology::ranks_of(int node) const
{
  std::vector<int> ranks;
  for (int r = 0; r < static_cast<int>(node_of.size()); ++r)
    if (node_of[static_cast<std::size_t>(r)] == node) ranks.push_back(r);
  return ranks;
}

int Topology::ranks_per_node() const
{
  const int each = static_cast<int>(node_of.size()) / nodes;
  for (int node = 0; node < nodes; ++node)
    if (static_cast<int>(ranks_of(node).size()) != each) return 0;
  return each;
}

Topology one_machine(int ranks, int ranks_per_node, DeviceKind device)
{
  Topology topology;
  topology.device = device;
  for (int r = 0; r < ranks; ++r) topology.node_of.push_back(ranks_per_node > 0 ? r / ranks_per_node : 0);
  topology.nodes = topology.node_of.back() + 1;
  return topology;
}

Topology find_topology(const Communicator& communicator, int ranks_per_node)
{
  // A machine is known by its lowest rank, and a part of it by its number there.
  const Communicator machine = communicator.split_by_machine();
  std::array<int, 2> own{communicator.rank(), ranks_per_node > 0 ? machine.rank() / ranks_per_node : 0};
  check_mpi(MPI_Bcast(own.data(), 1, MPI_INT, 0, machine.handle()), "naming a machine");
  std::vector<std::array<int, 2>> all(static_cast<std::size_t>(communicator.ranks()));
  check_mpi(MPI_Allgather(own.data(), 2, MPI_INT, all.data(), 2, MPI_INT, communicator.handle()),
            "asking for the machines of all ranks");

  std::map<std::array<int, 2>, int> number;
  Topology topology;
  for (const std::array<int, 2>& node : all)
    topology.node_of.push_back(number.emplace(node, static_cast<int>(number.size())).first->second);
  topology.nodes = static_cast<int>(number.size());
  return topology;
}

Algorithm chosen_algorithm(Algorithm algorithm, const Topology& topology, std::string_view collective,
                           std::int64_t bytes)
{
  if (algorithm != Algorithm::automatic) return algorithm;
  if (topology.nodes == 1 && topology.device == DeviceKind::cpu) return Algorithm::shared;
  if (collective == "barrier" || bytes < large_message) return Algorithm::halving;
  return topology.nodes > 1 && topology.ranks_per_node() > 1 ? Algorithm::hierarchical : Algorithm::ring;
}

}  // namespace rankwise
