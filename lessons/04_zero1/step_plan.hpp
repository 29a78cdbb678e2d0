#pragma once

#include <cstdint>
#include <vector>

#include "common/base/partition.hpp"
#include "common/collectives/cost.hpp"
#include "common/memory/tensor.hpp"
#include "common/messages/algorithm.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/topology.hpp"
#include "common/program/session.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// What the messages of a step cost where each rank owns a part of the model, from the sizes alone.

namespace rankwise {

/// What decides which messages a step sends.
struct StepPlan {
  ParameterTable table;         ///< the parameters
  std::vector<Bucket> buckets;  ///< of its elements: what is sent together
  DType gradients;              ///< type of the gradients, which are reduce-scattered
  DType parameters;             ///< type of the parameters, which are gathered
  bool tied_separate = false;   ///< whether the tied embedding's second gradient is a sum of its own
  Algorithm algorithm;          ///< by which all of that is sent
  // Where gradients are summed over the ranks after each pass, and not once a step:
  std::int64_t global_batch = 0;  ///< sequences of a step
  std::int64_t micro_batch = 0;   ///< sequences of a pass; 0: all of a rank's share
};

/// That of a run whose gradients are summed over the ranks once a step; or after each micro-batch.
/// @param table, buckets  what is sent together.
StepPlan step_plan(const LessonOptions& options, const ParameterTable& table, std::vector<Bucket> buckets,
                   bool each_micro_batch = false);

/// How often gradients are summed over @p ranks ranks in a step.
std::int64_t sums_of_step(const StepPlan& plan, std::int64_t ranks);

/// What is summed of the gradients of the whole model: their type and, where the tied embedding's second gradient is a sum
/// of its own, where it belongs.
GradientLayout sums_of(const StepPlan& plan);

/// The shards that a rank owns.
std::vector<Range> owned_shards(const StepPlan& plan, RankOf rank);

/// What one rank sends of gradients in one step: in reduce-scatters of all buckets.
Traffic gradient_traffic(const StepPlan& plan, const Topology& topology, int rank);

/// What one rank sends in one all-gather of the parameters of a bucket.
Traffic gather_traffic(const StepPlan& plan, const Bucket& bucket, const Topology& topology, int rank);

/// What one rank sends in one step: in reduce-scatters of the gradients and in one all-gather of each bucket's parameters.
Traffic step_traffic(const StepPlan& plan, const Topology& topology, int rank);

/// The collectives of a step, each once.
std::vector<CollectiveShape> collectives_of(const StepPlan& plan);

}  // namespace rankwise
