#include "common/messages/mesh.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#ifdef __linux__
#include <sched.h>
#endif

#include "common/base/error.hpp"
#include "common/messages/agreement.hpp"

namespace rankwise {

namespace {

/// The cores that this process may run on, as "0" or "0-3,8".
std::string own_cores()
{
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    std::vector<std::string> runs;
    for (int first = 0; first < CPU_SETSIZE; ++first) {
      if (!CPU_ISSET(first, &set)) continue;
      int last = first;
      while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
      runs.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
      first = last;
    }
    return fmt::format("{}", fmt::join(runs, ","));
  }
#endif
  return "any";
}

/// Index of an axis.
std::size_t index_of(const std::vector<Axis>& axes, const std::string& name)
{
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (axes[a].name == name) return a;
  throw Error(fmt::format("the mesh has no axis {}", name));
}

}  // namespace

std::vector<int> coordinates_of(const std::vector<Axis>& axes, int rank)
{
  // BEGIN EXERCISE 10.1
  std::vector<int> coordinates(axes.size());
  for (std::size_t a = axes.size(); a-- > 0;) {
    coordinates[a] = rank % axes[a].size;
    rank /= axes[a].size;
  }
  return coordinates;
  // END EXERCISE
}

int rank_at(const std::vector<Axis>& axes, const std::vector<int>& coordinates)
{
  int rank = 0;
  for (std::size_t a = 0; a < axes.size(); ++a) rank = rank * axes[a].size + coordinates[a];
  return rank;
}

std::vector<int> line_of(const std::vector<Axis>& axes, int rank, const std::string& axis)
{
  // BEGIN EXERCISE 10.2
  const std::size_t a = index_of(axes, axis);
  std::vector<int> coordinates = coordinates_of(axes, rank), line;
  for (coordinates[a] = 0; coordinates[a] < axes[a].size; ++coordinates[a])
    line.push_back(rank_at(axes, coordinates));
  return line;
  // END EXERCISE
}

void check_mesh(const std::vector<Axis>& axes, int ranks)
{
  std::vector<std::string> sizes;
  constexpr std::int64_t most = std::numeric_limits<int>::max();  // the largest number of ranks in MPI
  std::int64_t product = 1;
  for (const Axis& axis : axes) {
    if (axis.size < 1)
      throw UserError(fmt::format("--{}={} is not a number of ranks.", axis.name, axis.size),
                      "Each axis of the mesh has at least one rank.");
    sizes.push_back(fmt::format("--{}={}", axis.name, axis.size));
    product = std::min(product, most) * axis.size;
  }
  if (product != ranks)
    throw UserError(
        fmt::format("{} make {} ranks, but {} were started.", fmt::join(sizes, " times "), product, ranks),
        fmt::format("Start `mpirun -np {}`, or choose sizes whose product is {}.", product, ranks));
}

void check_algorithm(Algorithm algorithm, const Topology& topology, const std::vector<Axis>& axes)
{
  check_algorithm(algorithm, topology);
  if (algorithm != Algorithm::hierarchical) return;
  for (const Axis& axis : axes)
    for (int rank = 0; rank < static_cast<int>(topology.node_of.size()); ++rank)
      if (topology.among(line_of(axes, rank, axis.name)).ranks_per_node() == 0)
        throw UserError(
            fmt::format(
                "--collectives=hierarchical, but the nodes have different numbers of the ranks along {} ({}).",
                axis.name, fmt::join(line_of(axes, rank, axis.name), " ")),
            "Between nodes each rank has one partner on every node. Choose other degrees, or use "
            "--collectives=ring or auto.");
}

Mesh::Mesh(const Session& session, std::vector<Axis> axes, const GroupSetup& setup) : axes_(std::move(axes))
{
  check_mesh(axes_, session.ranks());
  world_ = std::make_unique<Group>("world", Communicator::world(), setup);
  for (const Axis& axis : axes_) {
    const std::vector<int> line = line_of(axes_, session.rank(), axis.name);
    GroupSetup of_axis = setup;
    if (axis.stream != nullptr) of_axis.stream = axis.stream;
    groups_.push_back(std::make_unique<Group>(axis.name, world_->communicator().among(line), of_axis));
  }
}

Group& Mesh::group(const std::string& axis)
{
  return *groups_[index_of(axes_, axis)];
}

std::string Mesh::table() const
{
  const std::vector<std::string> hosts = gather_texts(world_->communicator(), host_name()),
                                 cores = gather_texts(world_->communicator(), own_cores());
  std::string text = fmt::format("{:>4}  {:<20}  {:<10}", "rank", "host", "cores");
  for (const Axis& axis : axes_) text += fmt::format("  {:>5}", axis.name);
  text += "  groups";
  for (int r = 0; r < world_->ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    text += fmt::format("\n{:>4}  {:<20.63}  {:<10.31}", r, hosts[at], cores[at]);
    text += fmt::format("  {:>5}", fmt::join(coordinates_of(axes_, r), "  "));
    std::vector<std::string> lines;
    for (const Axis& axis : axes_)
      lines.push_back(fmt::format("{}: {}", axis.name, fmt::join(line_of(axes_, r, axis.name), " ")));
    text += fmt::format("  {}", fmt::join(lines, "; "));
  }
  return text;
}

}  // namespace rankwise
