#include "lessons/16_five_axes/experts_on_mesh.hpp"

#include <algorithm>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/collectives/collectives.hpp"
#include "common/messages/job_report.hpp"

namespace rankwise {

namespace {

/// A group of the same ranks, whose traffic is counted under another name.
std::unique_ptr<Group> group_named(const char* name, const Group& same, const GroupSetup& setup)
{
  return std::make_unique<Group>(name, same.communicator().duplicate(), setup);
}

/// Settings of a model whose rows the host counts.
ModelContext context_of(const Run& run)
{
  return {run.config, run.kernels, run.shape.part, run.options.dropout, run.options.seed, run.stream.get()};
}

}  // namespace

ExpertsOnMesh::ExpertsOnMesh(Run& run, const FiveAxesPlan& plan, const std::vector<LocalStage>& stages,
                             const Tensor& parameters, Group& ep, Group& cp, Group& tp)
    : run_(run),
      plan_(plan),
      cp_(cp),
      rows_(group_named("experts", ep, run.group_setup())),
      outputs_(group_named("outputs", tp, run.group_setup())),
      layer_(context_of(run), ep.ranks()),
      exchange_(*rows_, *run.stream, context_of(run), run.shape),
      stages_(stages.size())
{
  if (!plan.has_experts()) return;
  // Memory for messages is taken before the first step: the choices of all runs of a sequence, (2 c, R, k), and scratch for
  // the exchanges along ep, and for the sum along tp of the outputs of as many rows as can arrive.
  choices_ = Buffer(run.memory, Category::communication, DType::i32, {plan.choices()}, "choices of all runs");
  for (const CollectiveShape& call : plan.row_exchanges()) reserve_scratch(call, *rows_);
  reserve_scratch(plan.largest_output(), *outputs_);
  // Each stage has a table of its experts, E / e of each block that has some, and their shard along tp.
  const Part group{ep.rank(), ep.ranks()};
  std::int64_t first = 0;  // element of the stage's experts in @p parameters
  for (std::size_t place = 0; place < stages.size(); ++place) {
    const PipelineStage& stage = stages[place].stage;
    const GradientLayout layout = plan.expert_gradients(stage);
    if (layout.elements == 0) continue;
    OfStage& own =
        stages_[place].emplace(OfStage{ParameterTable(run.config, run.shape.part, stage.units, 0, plan.experts),
                                       parameters.slice({first, layout.elements})});
    own.gradients = std::make_unique<ExpertGradients>(run.arithmetic, run.kernels, *run.stream, run.memory, layout,
                                                      group, run.batch.global_batch / plan.degrees.layout.dp);
    // In exact arithmetic an expert's gradient is a sum for each of the e ranks that send it rows, and for each of
    // their two runs of tokens.
    for (int source = 0; source < ep.ranks(); ++source)
      own.of_runs.emplace_back(run, layout, plan.ring.runs.order, cp);
    for (const Branch& branch : stages[place].model.branches)
      if (branch.experts()) weights_[branch.unit()] = expert_tensors(own.table, branch.unit(), own.parameters);
    first += layout.elements;
  }
}

void ExpertsOnMesh::begin_step()
{
  exchange_.begin_step();
  counted_ = {};
  for (auto& own : stages_)
    if (own) own->gradients->clear();
}

void ExpertsOnMesh::begin(std::size_t place, Range sequences)
{
  if (!stages_[place]) return;
  OfStage& own = *stages_[place];
  // Rows from another rank along ep are of other sequences, so in exact arithmetic they have a sum of their own. Each sum is
  // open for both runs of tokens.
  own.gradients->begin(sequences);
  own.open.clear();
  for (std::size_t source = 0; source < own.of_runs.size(); ++source)
    own.open.push_back(own.of_runs[source].begin({own.gradients->of(static_cast<std::int64_t>(source)), {}}));
}

void ExpertsOnMesh::end(std::size_t place, Range sequences)
{
  if (!stages_[place]) return;
  OfStage& own = *stages_[place];
  // Both runs add up, in exact arithmetic with those of the other ranks along cp; then the micro-batch joins the step's sum.
  for (std::size_t source = 0; source < own.of_runs.size(); ++source)
    own.of_runs[source].end({own.gradients->of(static_cast<std::int64_t>(source)), {}});
  own.gradients->end(sequences);
}

// ---- Forward --------------------------------------------------------------------------------------------------------

std::vector<std::int32_t> ExpertsOnMesh::choices_of_sequences(std::span<TokenRun> runs,
                                                              const std::vector<BranchActivations>& all)
{
  // BEGIN EXERCISE 16.2
  const TokenRuns& of_sequence = plan_.ring.runs;
  const std::int64_t of_run = choices_.tensor().elements() / of_sequence.count();
  const auto in_buffer = [&](int rank, std::size_t k) {
    const std::int64_t number = rank * std::ssize(runs) + static_cast<std::int64_t>(k);
    return Range{number * of_run, of_run};
  };
  for (std::size_t k = 0; k < runs.size(); ++k)
    run_.stream->copy(choices_.tensor().slice(in_buffer(cp_.rank(), k)), all[k].routed.choices.reshaped({of_run}));
  all_gather(choices_.tensor(), cp_);
  // From runs by rank to the order of the tokens in each sequence.
  const std::vector<std::int32_t> by_rank = to_host<std::int32_t>(*run_.stream, choices_.tensor());
  std::vector<std::int32_t> choices(by_rank.size());
  const std::int64_t B = run_.shape.B, piece = of_run / B;  // of one sequence
  for (int rank = 0; rank < cp_.ranks(); ++rank)
    for (std::size_t k = 0; k < runs.size(); ++k)
      for (std::int64_t b = 0; b < B; ++b)
        std::copy_n(by_rank.begin() + in_buffer(rank, k).first + b * piece, piece,
                    choices.begin() + (b * of_sequence.count() + of_sequence.of(rank)[k]) * piece);
  return choices;
  // END EXERCISE
}

/// Adds up what the parts of the experts have computed for the rows that arrived: an all-reduce along tp of 2 (tp-1)/tp C
/// numbers a row. How many rows these are, only the router knows, so the formula for the bytes is evaluated here.
void ExpertsOnMesh::sum_over_parts(const Tensor& rows, const RoutedRows& routed, bool training)
{
  const std::int64_t elements = routed.here.all() * run_.config.channels;
  if (elements == 0) return;
  all_reduce_sum(rows.slice({0, elements}), *outputs_);
  if (training)
    counted_ += expected_traffic({"all-reduce", outputs_->algorithm(), rows.type(), elements}, outputs_->topology(),
                                 outputs_->rank());
}

void ExpertsOnMesh::forward(const Branch& branch, const BranchTensors& p, std::span<TokenRun> runs,
                            const std::vector<BranchActivations>& all)
{
  // The router: soft-max over E logits a token, of which the k most probable experts get its row.
  for (std::size_t k = 0; k < runs.size(); ++k) layer_.route(runs[k].work.experts, all[k], p.router, runs[k].batch);
  // NEW: capacity and auxiliary loss are those of whole sequences, so ranks along cp tell each other the choices of their
  // tokens, and every one of them plans all tokens.
  const RoutingShape shape{run_.shape.B, plan_.ring.runs.T, run_.config.experts};
  const std::vector<std::int32_t> choices = choices_of_sequences(runs, all);
  const RoutingPlan whole = plan_routing(choices, shape);
  const std::vector<double> pull = auxiliary_pull(whole, shape);
  for (std::size_t k = 0; k < runs.size(); ++k) {
    const auto& [tokens, work, kept, batch, gradient, doutput] = runs[k];
    const RoutedActivations& routed = all[k].routed;
    const std::vector<ExpertTensors>& experts = weights_.at(branch.unit());
    // Of that plan each run sends its own rows along ep, as in lesson 15: counts first, then the rows, sorted by expert.
    const RoutingPlan own = plan_of_run(whole, choices, shape, tokens, batch.sixteenths);
    layer_.keep(routed, own, pull);
    // What was counted is kept until the backward pass, as are the activations: several micro-batches are in flight.
    const RoutedRows& rows =
        routed_.insert_or_assign(key(branch, runs[k]), exchange_.count(own, routed, (branch.unit() - 1) / 2, batch))
            .first->second;
    layer_.scatter(work.experts.sent, all[k]);
    exchange_.to_experts(routed.received, work.experts.sent, rows);
    // NEW: an expert's hidden channels are divided along tp, so its outputs are partial sums; its bias is added once, to the
    // whole ones.
    layer_.forward(work.experts.output, routed, experts, rows.here);
    sum_over_parts(work.experts.output, rows, batch.training);
    layer_.add_bias(work.experts.output, experts, rows.here);
    // The outputs go back to where the rows came from, and are added up, each with the weight of its choice.
    exchange_.back(routed.returned, work.experts.output, rows);
    layer_.combine(work.output, routed);
  }
}

// ---- Backward -------------------------------------------------------------------------------------------------------

void ExpertsOnMesh::backward(std::size_t place, const Branch& branch, const BranchTensors& p, const Tensor& drouter,
                             const TokenRun& run, std::size_t k, const BranchActivations& all)
{
  const OfStage& own = *stages_[place];
  const Workspace::Experts& scratch = run.work.experts;
  const RoutedRows rows = routed_.extract(key(branch, run)).mapped();
  // A choice's weight times doutput is the gradient of its expert's output; it travels along ep, where the row did.
  layer_.combine_backward(scratch.sent, scratch, run.doutput, all.routed);
  exchange_.to_experts(scratch.output, scratch.sent, rows);
  // Each expert's MLP backwards, rows of one source at a time, to the sums of this source and run.
  for (std::size_t source = 0; source < own.open.size(); ++source)
    layer_.backward(scratch, expert_tensors(own.table, branch.unit(), own.open[source][k].flat), all.routed,
                    weights_.at(branch.unit()), rows.here, static_cast<std::int64_t>(source));
  // The gradients of inputs are partial sums, as in front of every divided layer.
  sum_over_parts(scratch.output, rows, true);
  // They come back, and meet those that the router's choice of weights gives.
  exchange_.back(scratch.sent, scratch.output, rows);
  layer_.route_backward(run.work.output, drouter, scratch.sent, scratch, all, p.router, run.batch);
}

Tensor ExpertsOnMesh::total(std::size_t place)
{
  return stages_[place] ? stages_[place]->gradients->total() : Tensor{};
}

void ExpertsOnMesh::report(Report& report)
{
  if (!plan_.has_experts()) return;
  // All tp ranks of a stage route the same rows.
  exchange_.report(report, run_.sent["experts"], outputs_->ranks());
  const Traffic& measured = run_.sent["outputs"];
  report.json()["traffic"]["outputs"] = {{"bytes", measured.bytes}, {"formula", counted_.bytes}};
  report.check("bytes of experts' outputs that rank 0 sent", group_digits(counted_.bytes),
               group_digits(measured.bytes), on_all_ranks(measured == counted_));
}

}  // namespace rankwise
