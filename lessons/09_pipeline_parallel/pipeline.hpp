#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/group.hpp"
#include "common/program/time_ledger.hpp"
#include "lessons/09_pipeline_parallel/pipeline_schedule.hpp"
#include "lessons/09_pipeline_parallel/row_channel.hpp"

/// @file
/// Carries out schedules.

namespace rankwise {

/// An action that was carried out.
struct PerformedAction {
  Action action;              ///< which
  std::int64_t begin_ns = 0;  ///< of event_clock_ns(), when its rows were there
  std::int64_t end_ns = 0;    ///< of event_clock_ns()
};

/// Computes one action.
/// @param rows  (R, C) what arrived for it: the rows in front of the stage, or the gradient of those behind it; empty where
///              nothing does.
/// @param room  (R, C) where it leaves what is sent on: the rows behind the stage, or the gradient of those in front of it;
///              empty where nothing is.
using Perform = std::function<void(const Action& action, const Tensor& rows, const Tensor& buffer)>;

/// The ranks of a pipeline and the channels between them: forwards from each rank to the next one, and backwards; with
/// virtual stages also from the last to the first.
class Pipeline {
 public:
  /// All its ranks make and destroy it together.
  /// @param line            the p ranks, by stage; outlives this.
  /// @param virtual_stages  v.
  /// @param setup           of the channels' groups.
  /// @param type            of the rows.
  /// @param rows            (R, C) of a micro-batch.
  /// @param time            where waiting is counted. What is pointed to outlives this.
  Pipeline(Group& line, int virtual_stages, const GroupSetup& setup, DType type, const Shape& rows,
           TimeLedger& time);

  /// Carries out this rank's list of @p schedule: waits for what an action needs, computes it, and sends on what it gave while
  /// the next one is computed. All ranks make this call.
  /// @param schedule  one that check_schedule() passes, of these ranks and virtual stages.
  std::vector<PerformedAction> run(const PipelineSchedule& schedule, const Perform& perform);

  /// Bytes of one rank's channels.
  static std::int64_t bytes(int ranks, int virtual_stages, int rank, DType type, const Shape& rows);

 private:
  RowReceiver* source_of(const Action& action, const PipelineSchedule& schedule) const;
  RowSender* target_of(const Action& action, const PipelineSchedule& schedule) const;

  Group& line_;
  TimeLedger& time_;
  std::unique_ptr<MessageProgress> progress_;
  std::unique_ptr<RowReceiver> rows_in_, gradients_in_;
  std::unique_ptr<RowSender> rows_out_, gradients_out_;
};

/// Name of the groups of channels that rows go through, under which their traffic is counted.
inline constexpr const char* rows_group = "pp forward";
/// Name of those that gradients go through.
inline constexpr const char* gradients_group = "pp backward";

}  // namespace rankwise
