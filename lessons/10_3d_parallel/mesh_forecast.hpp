#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "common/messages/layers/link_options.hpp"
#include "common/program/report.hpp"
#include "lessons/10_3d_parallel/mesh_plan.hpp"

/// @file
/// Memory and time of a run on each mesh of N ranks, before anything runs, and the choice of a mesh.

namespace rankwise {

/// Expected memory and time of a run on one mesh.
struct MeshForecast {
  Layout layout;           ///< the degrees
  std::int64_t bytes = 0;  ///< of memory on the rank that needs most
  double step_s = 0;       ///< seconds a step
};

/// The time of messages that each rank along an axis sends one after the other.
/// @param plan  of rank 0.
/// @param axis  name of one of its axes, or "tied".
double message_seconds(const Traffic& sent, const MeshPlan& plan, const LinkOptions& links, const char* axis);

/// The time of a step by formula: the simulated schedule, whose passes take the time of their arithmetic and of
/// their tensor-parallel messages; then the messages of one micro-batch through all stages and back, the sums over
/// replicas, and that of the tied embedding, none of them overlapped. A message of b bytes takes latency + b /
/// bandwidth, and a rank sends one after the other. Along an axis with different links a message takes the mean of
/// their times, and all messages of a rank take at least the time that the slowest link needs for them.
/// @param plan         of rank 0.
/// @param link         between ranks.
/// @param flops_per_s  of a rank.
double step_seconds(const MeshPlan& plan, const LinkOptions& link, double flops_per_s);

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

/// The forecast of a run on another mesh of N ranks; the time is 0 without --link. Empty if the model cannot be
/// divided so.
std::optional<MeshForecast> forecast(const MeshParallelOptions& options, const Layout& layout, int N);

/// Prints in a dry run the stages, the planned schedule, and with --link the forecast of all meshes.
void report_plan(Report& report, const MeshParallelOptions& options, int N);

}  // namespace rankwise
