#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/memory/device.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/layers/virtual_clock.hpp"
#include "common/messages/topology.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/parallel/pipeline/pipeline_options.hpp"
#include "lessons/parallel/pipeline/pipeline_schedule.hpp"
#include "lessons/parallel/pipeline/schedule_check.hpp"
#include "lessons/parallel/pipeline/stage.hpp"

/// @file
/// The stages of each rank and the messages between them, from the sizes alone.

namespace rankwise {

/// A pipeline before it runs.
struct PipelinePlan {
  /// @param config    the model.
  /// @param shape     of a micro-batch that passes through all units.
  /// @param units     of each stage, as from stage_units().
  /// @param schedule  of a step, with as many stages.
  PipelinePlan(const ModelConfig& config, const ActivationShape& shape, const std::vector<Range>& units,
               PipelineSchedule schedule);

  ModelConfig config;                 ///< the model
  ActivationShape shape;              ///< sizes of a micro-batch
  ParameterTable table;               ///< all parameters
  std::vector<PipelineStage> stages;  ///< in order
  PipelineSchedule schedule;          ///< the actions of a step
  std::vector<ActionCosts> costs;     ///< each stage's, in floating-point operations

  /// The stages of a rank, in order.
  std::vector<PipelineStage> stages_of(int rank) const;
  /// The number of an action's stage among those of its rank.
  std::size_t place_of(const Action& action) const
  {
    return static_cast<std::size_t>(action.stage / schedule.ranks);
  }
  /// The shape of a micro-batch in a stage.
  ActivationShape shape_of(const PipelineStage& stage) const;
  /// (R, C) of a micro-batch, or (R / t, C) with sequence parallelism.
  Shape rows() const { return {shape.shared_rows(), config.channels}; }
  /// The most micro-batches in flight in a stage: it keeps the activations of as many.
  int in_flight(const PipelineStage& stage) const;

  /// Bytes of activations on a rank, of all its micro-batches in flight and of the block that recomputation shares.
  std::int64_t activation_bytes(int rank) const;
  /// Floating-point operations of all actions of a rank.
  std::int64_t flops_of(int rank) const;
};

/// The pipeline of lesson 09 on N ranks.
PipelinePlan plan_of(const PipelineParallelOptions& options, int N);

/// Messages that one rank sends to its neighbours in a schedule: the output of each of its stages to the next
/// stage, and the gradient of its input to the stage before. m B T C elements cross each stage boundary in either
/// direction.
/// @param rows  (R, C) of a micro-batch, R = B T.
/// @source  Narayanan et al. 2021 (Megatron-LM), section 3.2.
Traffic row_traffic(const PipelineSchedule& schedule, int rank, DType type, const Shape& rows);

/// Counts the arithmetic of an action on the virtual clock. @param clock  null if there is none.
void charge(VirtualClock* clock, const PipelinePlan& plan, const Action& action);

/// Micro-batches, schedule and stages as text, for the report.
std::string describe(const PipelinePlan& plan);
/// The blocks of each stage, and the work of the largest relative to the mean, as text for the report.
std::string describe_stages(const PipelinePlan& plan);

/// Bytes that one rank allocates for all messages of a run: scratch of its groups, host values on the device,
/// channels.
/// @param gradients        type of the gradients.
/// @param line, two_ranks  topology of all p ranks, and of the first and the last.
std::int64_t message_bytes(const PipelinePlan& plan, Algorithm algorithm, DType gradients, const Topology& line,
                           const Topology& two_ranks, int rank);

/// Number of elements of the token embedding, padding included.
std::int64_t token_elements(const ParameterTable& table);

/// The collective in which a rank sums the token embedding's gradient in a step: an all-reduce of V C elements between
/// the first and the last rank; none on other ranks, and none if p = 1.
/// @param rank      0 <= rank < p.
/// @param elements  V C, padding included.
std::vector<CollectiveShape> tied_calls(int ranks, int rank, Algorithm algorithm, DType type,
                                        std::int64_t elements);

}  // namespace rankwise
