#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "common/program/report.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/parallel/mesh/mesh_plan.hpp"

/// @file
/// Memory and time of a run on each mesh of N ranks, before anything runs, and the choice of a mesh.

namespace rankwise {

/// Expected memory and time of a run on one mesh.
struct MeshForecast {
  Layout layout;           ///< the degrees
  std::int64_t bytes = 0;  ///< memory of the rank that needs most
  double step_s = 0;       ///< seconds a step; 0 if it was not asked for
  int cp = 0;              ///< ranks that divide each sequence; 0: a mesh without this axis
  int ep = 0;              ///< ranks that share the experts; 0: a mesh without this axis
};
/// Its degrees as text.
std::string describe(const MeshForecast& mesh);

/// Seconds of a step of N ranks with these options: rehearse(), which the frame hands over.
template <class Options>
using StepSeconds = std::function<double(const Options&, int N)>;

/// Completes the forecast of a mesh; empty if the model cannot be divided so.
/// @param mesh     its degrees.
/// @param options  with these degrees.
template <class Options>
std::optional<MeshForecast> forecast_with(MeshForecast mesh, const Options& options, int N,
                                          const StepSeconds<Options>& step_seconds)
{
  try {
    check_lesson(options, N);
  } catch (const UserError&) {
    return {};
  }
  mesh.bytes = largest_on_device(options, N).total();
  if (step_seconds) mesh.step_s = step_seconds(options, N);
  return mesh;
}

/// The fastest mesh that fits in memory.
/// @param ranks     N.
/// @param capacity  bytes of memory that each rank has.
/// @param forecast  of a mesh; empty if this model cannot be divided in that way.
/// @return  among equally fast meshes the one that needs least memory, and among these the first of
///          factorisations(); empty if none fits.
std::optional<MeshForecast> fastest_mesh(int ranks, std::int64_t capacity,
                                         const std::function<std::optional<MeshForecast>(const Layout&)>& forecast);

/// --memory-limit, or the most there can be.
std::int64_t memory_limit(const LessonOptions& options);

/// Block "meshes": memory and time of a step on each possible mesh, and the fastest that fits in memory; enters
/// `meshes` in the document.
/// @param all      of the possible meshes.
/// @param fastest  empty if none fits.
void report_meshes(Report& report, const std::vector<MeshForecast>& all,
                   const std::optional<MeshForecast>& fastest);

/// The forecast of a run on another mesh of N ranks; empty if the model cannot be divided so.
/// @param step_seconds  none: the time is 0.
std::optional<MeshForecast> forecast(const MeshParallelOptions& options, const Layout& layout, int N,
                                     const StepSeconds<MeshParallelOptions>& step_seconds = {});

/// The number of ranks up to which all meshes are rehearsed, which takes some seconds.
inline constexpr int most_ranks_of_all_meshes = 64;

/// Prints in a dry run the stages, the planned schedule, and with --link the forecast of all meshes.
void report_plan(Report& report, const MeshParallelOptions& options, int N,
                 const StepSeconds<MeshParallelOptions>& step_seconds);

}  // namespace rankwise
