#pragma once

#include <vector>

#include "common/messages/group.hpp"
#include "common/program/report.hpp"
#include "gpt2/experts/expert_layer.hpp"
#include "lessons/parallel/experts/experts_options.hpp"

/// @file
/// The messages of expert parallelism: counts first, then rows; and what was sent, and how loads were distributed.

namespace rankwise {

/// The rows of one block and micro-batch on this rank.
struct RoutedRows {
  std::vector<std::int64_t> sent;      ///< (e) rows sent to each rank's experts
  std::vector<std::int64_t> received;  ///< (e) rows that arrived from each rank
  ExpertRows here;                     ///< the same by expert and leaf
};

/// Sends rows between the e ranks that share the experts.
class ExpertExchange {
 public:
  /// @param group  the e ranks; outlives it.
  /// @param shape  of a micro-batch.
  ExpertExchange(Group& group, Stream& stream, const ModelContext& context, const ActivationShape& shape);

  /// Begins to count loads and traffic of a step.
  void begin_step();
  /// NEW: each rank tells each other one how many rows of each leaf it will send to its experts.
  RoutedRows count(const RoutingPlan& plan, const RoutedActivations& a, std::int64_t block,
                   const MicroBatch& batch);
  /// NEW: rows, or gradients of outputs, travel to the experts: from @p sent (A, C) to @p received (S, C).
  void to_experts(const Tensor& received, const Tensor& sent, const RoutedRows& rows);
  /// NEW: outputs, or gradients of rows, travel back: from @p output (S, C) to @p returned (A, C).
  void back(const Tensor& returned, const Tensor& output, const RoutedRows& rows);

  /// Prints the loads of the last step, of all ranks, and compares its traffic with what the counted rows give. All ranks of
  /// the job make this call.
  /// @param measured  traffic of this rank along `experts`.
  /// @param copies    ranks that route each row.
  void report(Report& report, const Traffic& measured, std::int64_t copies = 1);

 private:
  Group& group_;
  Stream& stream_;
  ModelConfig config_;
  ActivationShape shape_;
  ExpertLayer layer_;
  Traffic counted_;                               // what the counts of this step's rows give
  std::vector<std::vector<std::int64_t>> loads_;  // by block: rows that this rank sent to each expert in this step
};

}  // namespace rankwise
