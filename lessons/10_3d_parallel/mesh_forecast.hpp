#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "common/messages/layers/link_options.hpp"
#include "common/program/report.hpp"
#include "lessons/10_3d_parallel/mesh_plan.hpp"

/// @file
/// What a run on each mesh of N ranks would need and take, before anything runs; and which of them to choose.

namespace rankwise {

/// What is expected of a run on one mesh.
struct MeshForecast {
  Layout layout;           ///< the degrees
  std::int64_t bytes = 0;  ///< of memory, on the rank that needs most
  double step_s = 0;       ///< seconds a step
};

/// The time of a step by formula. The schedule is carried out on paper, with passes that take their arithmetic and the messages
/// to parts. Behind it come a trip through all stages and back, the sums over replicas, and that of the tied embedding; nothing
/// of these is hidden. A message of b bytes takes latency + b / bandwidth, and a rank sends one after the other. Along an axis
/// with different links a message takes their mean, and all messages of a rank no less than the narrowest needs for them.
/// @param plan         of rank 0.
/// @param link         between ranks.
/// @param flops_per_s  of a rank.
double step_seconds(const MeshPlan& plan, const LinkOptions& link, double flops_per_s);

/// The fastest mesh that has room.
/// @param ranks     N.
/// @param room      bytes of memory that each rank has.
/// @param forecast  of a mesh; nothing where this model cannot be cut so.
/// @return  of equally fast ones that which needs least, and of these the first of factorisations(); nothing if none fits.
std::optional<MeshForecast> fastest_mesh(int ranks, std::int64_t capacity,
                                         const std::function<std::optional<MeshForecast>(const Layout&)>& forecast);

/// Block "meshes": memory and time of a step on each mesh that is possible, and which is the fastest that has room; enters
/// `meshes` in the document.
/// @param room  bytes; 0 for no limit.
void report_meshes(Report& report, int ranks, std::int64_t capacity,
                   const std::function<std::optional<MeshForecast>(const Layout&)>& forecast);

/// What a run would need and take on another mesh of N ranks, no time without links; nothing where it cannot be cut so.
std::optional<MeshForecast> forecast(const MeshParallelOptions& options, const Layout& layout, int N);

/// What a dry run prints of lesson 10 beside its costs: the stages, the schedule as it is planned, and with links the meshes.
void report_plan(Report& report, const MeshParallelOptions& options, int N);

}  // namespace rankwise
