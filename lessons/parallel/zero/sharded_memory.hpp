#pragma once

#include <cstdint>
#include <vector>

#include "lessons/frame/costs.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"

/// @file
/// Memory of a rank that stores shards of FSDP units, computed from the sizes alone.

namespace rankwise {

/// Memory of a rank whose model state is sharded: what it keeps of whole layers, or of their
/// tensor-parallel shards; activations; and the units and buckets that are alive at the peak.
/// @param gathers   of a micro-batch; none: parameters stay whole on each rank.
/// @param rank      index and number of the ranks that shard the plan's table.
/// @param messages  bytes of all message buffers.
Costs sharded_memory(const LessonOptions& options, const Division& division, const StepPlan& plan,
                     const std::vector<GatherStep>& gathers, RankOf rank, std::int64_t messages);

}  // namespace rankwise
