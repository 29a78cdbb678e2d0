#include "common/messages/mesh.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#ifdef __linux__
#include <sched.h>
#endif

#include "common/error.hpp"

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

/// Where a rank runs, as it travels.
struct Place {
  std::array<char, 64> host{};
  std::array<char, 32> cores{};
};

std::vector<Place> all_places(const Communicator& communicator)
{
  Place own;
  std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(host.data(), &length), "asking for the name of this host");
  std::copy_n(host.begin(), std::min<std::size_t>(host.size(), own.host.size() - 1), own.host.begin());
  own_cores().copy(own.cores.data(), own.cores.size() - 1);
  std::vector<Place> all(static_cast<std::size_t>(communicator.ranks()));
  check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, communicator.handle()),
            "asking where all ranks run");
  return all;
}

}  // namespace

void check_mesh(const std::vector<Axis>& axes, int ranks)
{
  std::vector<std::string> sizes;
  int product = 1;
  for (const Axis& axis : axes) {
    if (axis.size < 1)
      throw UserError(fmt::format("--{}={} is no number of ranks.", axis.name, axis.size),
                      "Each axis of the mesh has one rank or more.");
    sizes.push_back(fmt::format("--{}={}", axis.name, axis.size));
    product *= axis.size;
  }
  if (product != ranks)
    throw UserError(
        fmt::format("{} make {} ranks, but {} were started.", fmt::join(sizes, " times "), product, ranks),
        fmt::format("Start `mpirun -np {}`, or choose sizes whose product is {}.", product, ranks));
}

Mesh::Mesh(const Session& session, std::vector<Axis> axes, const GroupSetup& setup) : axes_(std::move(axes))
{
  check_mesh(axes_, session.ranks());
  world_ = std::make_unique<Group>("world", Communicator::world(), setup);
  int stride = session.ranks();
  for (const Axis& axis : axes_) {
    stride /= axis.size;
    const int own = coordinate(session.rank(), axis.name);
    const int origin = session.rank() - own * stride;  // the rank with coordinate 0 on this line
    groups_.push_back(std::make_unique<Group>(axis.name, world_->communicator().split(origin, own), setup));
  }
}

Group& Mesh::group(const std::string& axis)
{
  for (std::size_t a = 0; a < axes_.size(); ++a)
    if (axes_[a].name == axis) return *groups_[a];
  throw Error(fmt::format("the mesh has no axis {}", axis));
}

int Mesh::coordinate(int rank, const std::string& axis) const
{
  int inside = 1;  // ranks between two neighbours along the axis
  for (std::size_t a = axes_.size(); a-- > 0;) {
    if (axes_[a].name == axis) return rank / inside % axes_[a].size;
    inside *= axes_[a].size;
  }
  throw Error(fmt::format("the mesh has no axis {}", axis));
}

std::string Mesh::table() const
{
  const std::vector<Place> places = all_places(world_->communicator());
  std::string text = fmt::format("{:>4}  {:<20}  {:<10}", "rank", "host", "cores");
  for (const Axis& axis : axes_) text += fmt::format("  {:>5}", axis.name);
  for (int r = 0; r < world_->ranks(); ++r) {
    const Place& place = places[static_cast<std::size_t>(r)];
    text += fmt::format("\n{:>4}  {:<20}  {:<10}", r, place.host.data(), place.cores.data());
    for (const Axis& axis : axes_) text += fmt::format("  {:>5}", coordinate(r, axis.name));
  }
  return text;
}

}  // namespace rankwise
