#pragma once

#include <vector>

#include "common/messages/group.hpp"
#include "lessons/08_tensor_parallel/whole_tensors.hpp"
#include "lessons/10_3d_parallel/mesh_plan.hpp"

/// @file
/// The whole model, put together from parts, stages and replicas.

namespace rankwise {

/// Who has which units along a line of stages.
UnitOwners owners_of(const PipelinePlan& plan, Group& line);

/// The model of which every rank has a part of some stages; it gives what one replica has of each element, or with ZeRO-1 what
/// the replica has that updates it.
/// @param plan     of this rank.
/// @param shards   f32 of what this rank updates, range by range of plan.updated().
/// @param owners   of owners_of(). All that is given outlives the model.
/// @param parts    the ranks that divide every layer.
/// @param replicas the ranks that have the same parts of the same stages.
DividedModel whole_model(const MeshPlan& plan, const std::vector<Tensor>& shards, const UnitOwners& owners,
                         Group& parts, Group& replicas);

}  // namespace rankwise
