#pragma once

#include <cstdint>
#include <string>

#include "lessons/11_zero_bubble/options.hpp"
#include "lessons/parallel/pipeline/pipeline_costs.hpp"

/// @file
/// Memory and traffic of a pipeline that defers weight gradients, from the sizes alone: those of lesson 09, whose costs()
/// takes the plan that these options give.
///
///     model state   as in lesson 09
///     activations   of a stage for p micro-batches, and for each the gradients that W needs: 9 C R a block
///     sent, pp      as in lesson 09: m B T C elements a stage boundary and direction
///     sent, tied    as in lesson 09: V C elements between first and last stage

namespace rankwise {

/// Options with which the run would fit into @p bytes, as a sentence.
std::string suggest_options(const ZeroBubbleOptions& options, int N, std::int64_t bytes);

}  // namespace rankwise
