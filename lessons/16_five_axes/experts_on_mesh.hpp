#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "common/messages/group.hpp"
#include "common/program/report.hpp"
#include "lessons/parallel/context/context_gradients.hpp"
#include "lessons/parallel/experts/expert_exchange.hpp"
#include "lessons/parallel/experts/expert_gradients.hpp"
#include "lessons/parallel/mesh/five_axes_plan.hpp"
#include "lessons/parallel/pipeline/local_stage.hpp"

/// @file
/// The experts of a rank on five axes: routed by whole sequences, divided by tensor parallelism.

namespace rankwise {

/// The experts of all stages of a rank.
///
/// Lesson 15 with two changes. A rank has two runs of tokens of each sequence, but an expert's capacity and the auxiliary
/// loss are those of the whole sequence: ranks along cp exchange the router's choices, and each plans the whole sequence.
/// And tp divides each expert as it does an MLP: its outputs, and the gradients of its inputs, are summed along tp.
class ExpertsOnMesh {
 public:
  /// @param stages      of this rank.
  /// @param parameters  of the experts of these stages, one stage after the other.
  /// @param ep, cp, tp  its groups along these axes. All arguments outlive this object.
  ExpertsOnMesh(Run& run, const FiveAxesPlan& plan, const std::vector<LocalStage>& stages, const Tensor& parameters,
                Group& ep, Group& cp, Group& tp);

  /// Begins a step: no gradients, no counts.
  void begin_step();
  /// Begins the backward pass of a micro-batch in stage number @p place of this rank.
  void begin(std::size_t place, Range sequences);
  /// Ends it.
  void end(std::size_t place, Range sequences);

  /// Computes the output of a branch, (R, C) in the scratch of each run of tokens, from its normalised rows.
  /// @param runs  of this rank.
  /// @param all   activations of the branch for each run, with the normalised rows of all tp ranks.
  /// @param p     the branch's parameters.
  void forward(const Branch& branch, const BranchTensors& p, std::span<TokenRun> runs,
               const std::vector<BranchActivations>& all);
  /// Computes the gradient of the normalised rows, (R, C) in the scratch of the run, from its doutput; adds the gradients of
  /// router and experts.
  /// @param place    number of the stage.
  /// @param k        number of the run on this rank.
  /// @param drouter  (C, E) to which the router's gradient is added.
  void backward(std::size_t place, const Branch& branch, const BranchTensors& p, const Tensor& drouter,
                const TokenRun& run, std::size_t k, const BranchActivations& all);

  /// Gradients of the experts of a stage, from all micro-batches whose rows came to this rank; empty without experts.
  Tensor total(std::size_t place);
  /// Prints loads, and compares the bytes of rows and of sums with what the counted rows give.
  void report(Report& report);

 private:
  /// The experts of a stage, and their gradients.
  struct OfStage {
    ParameterTable table;  // the stage's alone
    Tensor parameters;
    std::unique_ptr<ExpertGradients> gradients{};
    std::vector<ContextGradients> of_runs{};                                // by source
    std::vector<std::array<GradientTensors, TokenRuns::of_a_rank>> open{};  // by source, of a micro-batch
  };
  using Key = std::tuple<std::int64_t, int, std::int64_t>;  // first sequence, unit, first token

  static Key key(const Branch& branch, const TokenRun& run)
  {
    return {run.batch.rows.sequences.first, branch.unit(), run.tokens.first};
  }
  /// The experts that the router chose for each token of the micro-batch's B sequences, (B T, k), of which this rank has some.
  /// @param runs  of this rank.
  /// @param all   activations of a branch for each of them, whose choices are known.
  std::vector<std::int32_t> choices_of_sequences(std::span<TokenRun> runs,
                                                 const std::vector<BranchActivations>& all);
  void sum_over_parts(const Tensor& rows, const RoutedRows& routed, bool training);

  Run& run_;
  const FiveAxesPlan& plan_;
  Group& cp_;
  std::unique_ptr<Group> rows_, outputs_;  // along ep and tp
  ExpertLayer layer_;
  ExpertExchange exchange_;
  std::vector<std::optional<OfStage>> stages_;
  std::map<int, std::vector<ExpertTensors>> weights_;  // by unit
  Buffer choices_;                                     // (2 c, R, k)
  std::map<Key, RoutedRows> routed_;                   // the micro-batches in flight
  Traffic counted_;                                    // what the rows of this step give along tp
};

}  // namespace rankwise
