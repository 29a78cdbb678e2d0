#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/messages/group.hpp"
#include "common/program/session.hpp"

/// @file
/// A mesh of ranks with named axes.

namespace rankwise {

/// One axis of a mesh.
struct Axis {
  std::string name;          ///< as "dp", "tp" or "pp"
  int size = 1;              ///< ranks along it, >= 1
  Stream* stream = nullptr;  ///< carries the messages of its group; null: the stream that all groups share
};

/// The coordinates of a rank, one for each axis. Neighbouring ranks are adjacent along the last axis:
///
///     axes (pp 2, dp 2, tp 2)     rank = (pp * 2 + dp) * 2 + tp      rank 6 has the coordinates pp 1, dp 1, tp 0
///
/// @param axes  outermost first; any number of them.
/// @param rank  >= 0, below the product of their sizes.
/// @return      in the order of the axes; 0 <= coordinate < size.
std::vector<int> coordinates_of(const std::vector<Axis>& axes, int rank);
/// The rank that has these coordinates: the inverse of coordinates_of().
/// @param coordinates  one for each axis, 0 <= coordinate < size.
int rank_at(const std::vector<Axis>& axes, const std::vector<int>& coordinates);
/// The ranks that differ from @p rank at most in their coordinate on one axis: the group that sends messages along it.
/// @param axes, rank  as for coordinates_of().
/// @param axis        name of one of the axes; Error for any other.
/// @return            as many ranks as the axis has, @p rank among them, in the order of that coordinate.
std::vector<int> line_of(const std::vector<Axis>& axes, int rank, const std::string& axis);

/// All ranks of a job as the points of a mesh (coordinates_of()).
///
/// Each rank has a group along each axis: the ranks that differ from it in that coordinate only.
class Mesh {
 public:
  /// All ranks construct it together.
  /// @param session  its number of ranks was accepted by check_mesh().
  /// @param axes     outermost first, with distinct names.
  /// @param setup    settings of all groups.
  Mesh(const Session& session, std::vector<Axis> axes, const GroupSetup& setup);

  /// The ranks along an axis, in the order of their coordinates; Error for a name that no axis has.
  Group& group(const std::string& axis);
  /// All ranks of the job, named "world".
  Group& world() { return *world_; }

  /// Table of all ranks: host, core or cores, coordinates, and the ranks of each group. It is the same on all
  /// ranks, which make this call together.
  std::string table() const;

 private:
  std::vector<Axis> axes_;
  std::unique_ptr<Group> world_;
  std::vector<std::unique_ptr<Group>> groups_;  // by axis
};

/// Rejects axes whose sizes do not multiply to the job's number of ranks.
/// @throws UserError  with the sizes.
void check_mesh(const std::vector<Axis>& axes, int ranks);

/// Rejects an algorithm that the ranks of a mesh, or those along one of its axes, cannot use.
/// @param topology   nodes of all ranks of the mesh.
/// @throws UserError  as check_algorithm() of a group.
void check_algorithm(Algorithm algorithm, const Topology& topology, const std::vector<Axis>& axes);

}  // namespace rankwise
