#pragma once

#include <cstdint>
#include <vector>

#include "gpt2/experts/routing_plan.hpp"
#include "gpt2/model.hpp"

/// @file
/// The experts of an MLP branch: the calls between which a lesson sends rows.

namespace rankwise {

/// The rows that the experts here have received: by source, then by expert. A source is one of the e micro-batches whose
/// rows meet at the experts.
struct ExpertRows {
  std::int64_t experts = 0;            ///< E / e, experts here
  std::int64_t leaves = 0;             ///< leaves of a source's rows
  std::vector<std::int64_t> counts{};  ///< (e, E / e) rows
  std::vector<std::int64_t> ends{};    ///< (e, E / e, leaves) end of each leaf in the rows of its source and expert

  /// Counts the rows.
  /// @param received  (e, E / e, leaves) rows of each leaf.
  ExpertRows(std::vector<std::int64_t> received, std::int64_t experts, std::int64_t leaves);
  /// Number of sources.
  std::int64_t sources() const { return static_cast<std::int64_t>(counts.size()) / experts; }
  /// Rows of one source.
  std::int64_t from(std::int64_t source) const;
  /// Rows of all sources.
  std::int64_t all() const;
};

/// The replacement of Branch::apply() in a block with experts.
///
///     forward    route, plan, scatter:  each token's row, for each of the k experts that the router chooses
///                  ... rows travel to the experts ...
///                forward:               each expert's MLP over the rows that arrived
///                  ... outputs travel back ...
///                combine:               output = sum over the k choices of weight times output of the expert
///     backward   combine_backward ... backward ... route_backward, which also gives the router's gradient
///
/// Tensor parallelism divides each expert as it does an MLP: with n parts an expert has 4 C / n hidden channels here. The
/// result of forward() is a partial sum then, without the experts' biases, and so is that of backward(). The caller sums
/// over the n ranks, and calls add_bias() for the sum of forward().
class ExpertLayer {
 public:
  /// @param context  settings that all building blocks share.
  /// @param sources  e, the micro-batches whose rows meet at the experts.
  explicit ExpertLayer(const ModelContext& context, std::int64_t sources = 1) : context_(context), sources_(sources)
  {
  }

  /// Computes a.routed.probabilities, choices and weights from a.normalised.
  void route(const Workspace::Experts& work, const BranchActivations& a, const Tensor& router,
             const MicroBatch& batch) const;
  /// Plans where the rows of whole sequences go, and keeps the plan. Waits for the choices.
  RoutingPlan plan(const RoutedActivations& a, const MicroBatch& batch) const;
  /// Keeps a plan: fills a.places, sent_leaves and pull.
  /// @param plan  plan of the rows that are here.
  /// @param pull  (B, E) auxiliary_pull() of the plan of whole sequences.
  void keep(const RoutedActivations& a, const RoutingPlan& plan, const std::vector<double>& pull) const;
  /// Counts the rows that arrive; fills a.routed.leaf_ends.
  /// @param received  (e, E / e, leaves) rows of each leaf, by source, then by expert.
  ExpertRows count(std::vector<std::int64_t> received, const RoutedActivations& a, const MicroBatch& batch) const;
  /// Copies each token's normalised row to its places in @p rows, (A, C).
  void scatter(const Tensor& rows, const BranchActivations& a) const;
  /// Computes output (S, C), a partial sum when sharded, from a.received; fills a.inner and a.hidden.
  /// @param p  the experts here.
  void forward(const Tensor& output, const RoutedActivations& a, const std::vector<ExpertTensors>& p,
               const ExpertRows& rows) const;
  /// Adds the bias of each expert to its rows of @p output, (S, C), the sum of the parts. forward() of a whole expert has added
  /// it, and nothing is left to do.
  void add_bias(const Tensor& output, const std::vector<ExpertTensors>& p, const ExpertRows& rows) const;
  /// Computes output (R, C) from a.returned.
  void combine(const Tensor& output, const RoutedActivations& a) const;

  /// Computes drows (A, C), the gradient of a.returned, and work.dweights.
  /// @param doutput  (R, C) gradient of the branch's output.
  void combine_backward(const Tensor& drows, const Workspace::Experts& work, const Tensor& doutput,
                        const RoutedActivations& a) const;
  /// Adds the gradients of the experts for the rows of @p source to @p d, and replaces these rows' part of
  /// work.output, (S, C), the gradient of the outputs, by that of the inputs, a partial sum when sharded.
  void backward(const Workspace::Experts& work, const std::vector<ExpertTensors>& d, const RoutedActivations& a,
                const std::vector<ExpertTensors>& p, const ExpertRows& rows, std::int64_t source) const;
  /// Computes dnormalised (R, C) from drows (A, C) and from the router; adds the router's gradient to @p drouter.
  void route_backward(const Tensor& dnormalised, const Tensor& drouter, const Tensor& drows,
                      const Workspace::Experts& work, const BranchActivations& a, const Tensor& router,
                      const MicroBatch& batch) const;

 private:
  std::int64_t hidden_channels() const { return 4 * context_.config.channels / context_.part.count; }
  SumOrder over_hidden() const;
  RoutingShape shape(const MicroBatch& batch) const;

  ModelContext context_;
  std::int64_t sources_;
};

/// Branch::apply() of a branch with experts, all of them on one device: from a.normalised to work.output, (R, C).
void apply_experts(const ModelContext& context, const Workspace& work, const BranchActivations& a,
                   const BranchTensors& p, const MicroBatch& batch);
/// Branch::apply_backward() of a branch with experts, all of them on one device: from @p doutput, which may be
/// work.output, to the gradient of a.normalised in work.output.
void apply_experts_backward(const ModelContext& context, const Workspace& work, const BranchTensors& d,
                            const Tensor& doutput, const BranchActivations& a, const BranchTensors& p,
                            const MicroBatch& batch);
/// The parameters of a branch with experts for Branch::add(), which expects a bias.
BranchTensors without_bias(const BranchTensors& p, const Workspace& work);

/// The auxiliary loss of a branch, summed as its gradient is: T times that of each sequence.
ExactScalar auxiliary_loss(Stream& stream, const RoutedActivations& a);

}  // namespace rankwise
