#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/group.hpp"
#include "common/program/time_ledger.hpp"
#include "lessons/parallel/pipeline/row_channel.hpp"
#include "lessons/parallel/pipeline/schedule_check.hpp"

/// @file
/// Execution of a schedule: one loop for all of them.

namespace rankwise {

/// An action that was carried out, with its times on event_clock_ns(); it begins once its input has arrived.
using PerformedAction = TimedAction;

/// This rank's ends of the channels of one direction; null where there is no channel.
struct Channels {
  std::unique_ptr<RowReceiver> in;  ///< from the rank that sends in this direction
  std::unique_ptr<RowSender> out;   ///< to the next rank in this direction
};

/// Computes one action.
/// @param rows    (R, C) received input: the rows from the stage before, or their gradient from the stage after;
///                empty if the action receives nothing.
/// @param buffer  (R, C) for the result, which is sent on: the stage's output, or the gradient of its input; empty
///                if the action sends nothing.
using Perform = std::function<void(const Action& action, const Tensor& rows, const Tensor& buffer)>;

/// The ranks of a pipeline and the channels between them: from each rank to the next one for rows, and back for
/// gradients; with virtual stages also between the last rank and the first.
class Pipeline {
 public:
  /// All its ranks make and destroy it together.
  /// @param line            the p ranks, by stage; outlives this.
  /// @param virtual_stages  v.
  /// @param setup           of the channels' groups.
  /// @param type            of the rows.
  /// @param rows            (R, C) of a micro-batch.
  /// @param time            where waiting is counted. All references outlive this object.
  Pipeline(Group& line, int virtual_stages, const GroupSetup& setup, DType type, const Shape& rows,
           TimeLedger& time);

  /// Carries out this rank's list of @p schedule: waits for the input of an action, computes it, and sends its
  /// result while the next one is computed. All ranks make this call.
  /// @param schedule  one that check_schedule() accepts, of these ranks and virtual stages.
  std::vector<PerformedAction> run(const PipelineSchedule& schedule, const Perform& perform);

  /// Bytes of one rank's channel buffers.
  static std::int64_t bytes(int ranks, int virtual_stages, int rank, DType type, const Shape& rows);

 private:
  const Channels& channels_of(const Action& action) const
  {
    return action.kind == ActionKind::forward ? rows_ : gradients_;
  }

  Group& line_;
  TimeLedger& time_;
  std::unique_ptr<MessageProgress> progress_;
  Channels rows_, gradients_;
};

/// Name of the channels' groups for rows, under which their traffic is counted.
inline constexpr const char* rows_group = "pp forward";
/// Name of the channels' groups for gradients.
inline constexpr const char* gradients_group = "pp backward";

}  // namespace rankwise
