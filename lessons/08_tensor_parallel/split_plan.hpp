#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/config.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/08_tensor_parallel/split.hpp"

/// @file
/// What the messages of a divided model cost, from the sizes alone.

namespace rankwise {

/// What decides which messages a step sends.
struct SplitPlan {
  ModelConfig config;              ///< the model
  ActivationShape shape;           ///< of a micro-batch, as divided() gives it
  std::int64_t micro_batches = 1;  ///< of a step
  GradientLayout gradients;        ///< of one part: what the replicas add up
  bool tied_separate = false;      ///< whether the tied embedding's second gradient is a sum of its own
  Algorithm algorithm;             ///< by which all of that is sent
};

/// What one rank of the group that divides a model sends in one step.
///
/// With rows of n = B T C elements, by ring: 2 (t-1)/t n for a sum and, with sequence parallelism, (t-1)/t n for each of its
/// halves. A layer takes four sums a pass, two forwards and two backwards; with sequence parallelism four halves forwards
/// and four backwards, and two more where rows are gathered again. Recomputation takes those forwards twice. The embedding
/// and the head take one sum each, the loss three numbers a row.
/// @source  Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2.
Traffic tensor_parallel_traffic(const SplitPlan& plan, const Topology& topology, int rank);
/// The collectives that the group makes in a run, each once: these decide about its scratch.
std::vector<CollectiveShape> tensor_parallel_collectives(const SplitPlan& plan);
/// Makes the scratch of those of a step before them.
void reserve_tensor_parallel_scratch(const SplitPlan& plan, Group& parts);
/// What one rank sends to its replicas in one step.
Traffic replica_traffic(const SplitPlan& plan, const Topology& topology, int rank);
/// The first of these in letters, for people.
std::string describe_tensor_parallel_traffic(const ActivationShape& shape);

/// Bytes that one rank keeps for all messages of a run: scratch of the groups, TensorParallelMessages and RowGradients.
/// @param parts, replicas                  the groups.
/// @param rank_in_parts, rank_in_replicas  this rank in each of them.
std::int64_t message_bytes(const SplitPlan& plan, const Topology& parts, const Topology& replicas,
                           int rank_in_parts, int rank_in_replicas);

}  // namespace rankwise
