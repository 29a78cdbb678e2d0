#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "common/program/report.hpp"
#include "lessons/parallel/mesh/mesh_plan.hpp"

/// @file
/// Memory and time of a run on each mesh of N ranks, before anything runs, and the choice of a mesh.

namespace rankwise {

/// Expected memory and time of a run on one mesh.
struct MeshForecast {
  Layout layout;           ///< the degrees
  std::int64_t bytes = 0;  ///< memory of the rank that needs most
  double step_s = 0;       ///< seconds a step
};

/// Seconds of a step of N ranks with these options: rehearse(), which the frame hands over.
using MeshStepSeconds = std::function<double(const MeshParallelOptions&, int N)>;

/// The fastest mesh that fits in memory.
/// @param ranks     N.
/// @param capacity  bytes of memory that each rank has.
/// @param forecast  of a mesh; empty if this model cannot be divided in that way.
/// @return  among equally fast meshes the one that needs least memory, and among these the first of
///          factorisations(); empty if none fits.
std::optional<MeshForecast> fastest_mesh(int ranks, std::int64_t capacity,
                                         const std::function<std::optional<MeshForecast>(const Layout&)>& forecast);

/// Block "meshes": memory and time of a step on each possible mesh, and the fastest that fits in memory; enters
/// `meshes` in the document.
/// @param capacity  bytes of memory that each rank has; 0 for no limit.
void report_meshes(Report& report, int ranks, std::int64_t capacity,
                   const std::function<std::optional<MeshForecast>(const Layout&)>& forecast);

/// The forecast of a run on another mesh of N ranks; empty if the model cannot be divided so.
/// @param step_seconds  none: the time is 0.
std::optional<MeshForecast> forecast(const MeshParallelOptions& options, const Layout& layout, int N,
                                     const MeshStepSeconds& step_seconds = {});

/// The number of ranks up to which all meshes are rehearsed, which takes some seconds.
inline constexpr int most_ranks_of_all_meshes = 64;

/// Prints in a dry run the stages, the planned schedule, and with --link the forecast of all meshes.
void report_plan(Report& report, const MeshParallelOptions& options, int N, const MeshStepSeconds& step_seconds);

}  // namespace rankwise
