#pragma once

#include <string>
#include <vector>

#include "common/messages/group.hpp"
#include "common/program/report.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/frame/shards.hpp"

/// @file
/// Sums and comparisons of the shards that a rank stores in its tiers, along one axis of the mesh.

namespace rankwise {

/// The elements of a rank's shards that belong to tensors which tensor parallelism does not divide.
/// @param own  this rank's shards.
std::vector<Range> undivided_elements(const ParameterTable& table, const std::vector<Range>& own);

/// Check that all ranks of each group along an axis hold the same weights. All ranks of the job make this call.
/// @param what   name of the weights in the report.
/// @param held   the weights of this rank.
void check_same(Report& report, const std::string& what, Group& axis, const HeldShards& held);

/// Sums tensors over the ranks of a group as part of a collective of a CommunicationQueue, which has ordered it after
/// the work of the device already.
/// @param group  not that of the queue, but with messages on the same stream.
void all_reduce_in_queue(const std::vector<Tensor>& tensors, Group& group);

}  // namespace rankwise
