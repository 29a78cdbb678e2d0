#pragma once

#include <cstdint>
#include <string>

#include "lessons/frame/costs.hpp"
#include "lessons/parallel/mesh/mesh_plan.hpp"

/// @file
/// Memory and traffic of a rank of the mesh, from the sizes alone.

namespace rankwise {

/// Device memory of a rank of a mesh: model state and activations of its stages, and messages.
CategoryBytes mesh_bytes(const MeshPlan& plan, const LessonOptions& options);

/// Memory and traffic of rank r of N.
///
///     model state   4 P / (tp pp) bytes of parameters, as many of gradients, 8 P / N of optimizer states
///     activations   of its shard of a stage, for each micro-batch in flight
///     sent          along tp as in lesson 08, along pp and between its ends as in lesson 09,
///                   along dp 2 (dp-1)/dp of the gradients
Costs costs(const MeshParallelOptions& options, RankOf rank);

/// Floating-point operations that a rank charges to the virtual clock in a step: of all its actions.
std::int64_t charged_flops(const MeshParallelOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes, as a sentence.
std::string suggest_options(const MeshParallelOptions& options, int N, std::int64_t bytes);

}  // namespace rankwise
