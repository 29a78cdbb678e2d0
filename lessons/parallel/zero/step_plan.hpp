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
#include "gpt2/arithmetic.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/parallel/zero/buckets.hpp"

/// @file
/// Messages of a step if each rank owns a shard of the model, computed from the sizes alone.

namespace rankwise {

/// Everything that determines the messages of a step.
struct StepPlan {
  ParameterTable table;         ///< the parameters
  std::vector<Bucket> buckets;  ///< elements of each message
  DType gradients;              ///< type of the gradients, which are reduce-scattered
  DType parameters;             ///< type of the parameters, which are gathered
  Arithmetic arithmetic;        ///< order of the sums
  Algorithm algorithm;          ///< algorithm of all collectives
  // Only if gradients are summed over the ranks after each micro-batch, and not once a step:
  std::int64_t global_batch = 0;  ///< sequences of a step
  std::int64_t micro_batch = 0;   ///< --micro-batch; 0: its default
  std::int64_t leaves = 0;        ///< LessonOptions::leaves() if gradients are summed once a step, else 0
};

/// The plan of a run that sums gradients over the ranks once a step, or after each micro-batch.
/// @param table, buckets    the parameters, and the elements of each message.
/// @param each_micro_batch  whether gradients are summed after each micro-batch.
StepPlan step_plan(const LessonOptions& options, const ParameterTable& table, std::vector<Bucket> buckets,
                   bool each_micro_batch = false);

/// Number of sums of the gradients over @p ranks ranks in a step; each is of N B neighbouring sequences, and the last one
/// also of padding if ranks have different numbers of sequences.
std::int64_t sums_of_step(const StepPlan& plan, std::int64_t ranks);

/// True if each rank receives its shards of the gradients of every rank, and adds them itself. In exact arithmetic it has
/// to if gradients are summed after each micro-batch and N is no power of two: N neighbours are no subtree then.
bool adds_rank_by_rank(const StepPlan& plan, std::int64_t ranks);
/// The number of ranks that are added one by one then, N; otherwise 1.
std::int64_t separate_ranks(const StepPlan& plan, std::int64_t ranks);

/// Layout of the gradients of the whole model: their type, and the elements of the tied embedding if its second
/// gradient is a separate sum.
GradientLayout sums_of(const StepPlan& plan);

/// Shards that a rank owns.
std::vector<Range> owned_shards(const StepPlan& plan, RankOf rank);

/// The elements of the shards of each rank.
std::vector<std::vector<std::int64_t>> shards_of_all(const StepPlan& plan, int ranks);

/// The different collectives of a step of @p ranks ranks: sums of the gradients of each bucket, and all-gathers of its
/// parameters.
/// @param gathers  how often a step gathers the parameters of each bucket; none: once.
std::vector<CollectiveShape> collectives_of(const StepPlan& plan, std::int64_t ranks,
                                            const std::vector<std::int64_t>& gathers = {});

}  // namespace rankwise
