// Lesson 16: Five axes on one mesh
//
// Builds on:    lesson 10 (data, tensor and pipeline parallelism), lesson 14 (context parallelism) and lesson 15 (experts)
// New idea:     the N = dp tp pp c ranks have a group along each of five axes: lesson 10's three; the c ranks that divide
//               each sequence; and e of the dp replicas that share the experts of a block. Each axis still does what it does
//               alone. New is where they meet: a micro-batch in flight is two runs of tokens, an expert's capacity is that
//               of a whole sequence, and each kind of parameter has its own set of replicas to sum over.
// Memory:       16 bytes a parameter, of D / (tp pp) dense ones and P_E / (e tp pp) of experts, the optimizer's 8 of them
//               divided by the replicas (ZeRO-1); activations of B T / c tokens in a shard of a stage
// Traffic:      along tp and pp as in lesson 10 for T / c tokens, along cp and ep as in lessons 14 and 15; in exact
//               arithmetic along cp the gradients of each sequence too, many times as much
// Paper:        Dubey et al. 2024 (Llama 3), section 3.3.2; Narayanan et al. 2021 (Megatron-LM); Lepikhin et al. 2021 (GShard)
//
// Sample runs:  mpirun -np 8 build/lessons/16_five_axes --steps=3 --show-groups
//               mpirun -np 8 build/lessons/16_five_axes --steps=3 --arithmetic=exact --dp=2 --tp=2 --pp=1 --cp=2
//               mpirun -np 4 build/lessons/16_five_axes --steps=3 --experts=1 --sequence-parallel --cp=2 --tp=2
//             * mpirun -np 8 build/lessons/16_five_axes --device=cuda --steps=20    (* needs a GPU; eight of them for NCCL)
// Expect:       the loss column of lesson 15, whatever the mesh is; with --experts=1 that of lesson 01.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "gpt2/generate.hpp"
#include "lessons/16_five_axes/stage_layers.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/mesh/five_axes_costs.hpp"
#include "lessons/parallel/mesh/mesh_traffic.hpp"
#include "lessons/parallel/mesh/text_on_mesh.hpp"
#include "lessons/parallel/pipeline/schedule_report.hpp"
#include "lessons/parallel/pipeline/tied_embedding.hpp"
#include "lessons/parallel/zero/gradient_exchange.hpp"

namespace rankwise {

/// One rank of the mesh: its shard of its stages, for its two runs of tokens of each sequence. The frame
/// (lessons/frame/train.hpp) does the rest.
class FiveAxes {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    LossSum loss;
    for (LocalStage& own : stages) own.gradients->clear();
    experts.begin_step();
    in_flight.begin_step();
    {
      // As in lesson 10 each of the dp replicas runs its own schedule over G / dp sequences. NEW: a replica is c pipelines
      // side by side, each with the tokens of its ranks, which carry out the same actions.
      const auto counted = count("pp"), of_parts = count("tp"), of_context = count("cp");
      const auto rows = run.count("experts"), outputs = run.count("outputs");
      performed = pipeline.run(plan.schedule, [&](const Action& action, const auto&... rows_of_stage) {
        loss += perform(action, step, rows_of_stage...);
      });
    }
    const std::vector<Tensor> gradients = whole_gradients();
    // NEW: ranks along cp have other tokens, so their losses add up too.
    for (Group* axis : {&cp, &ep, &dp, &pp}) all_reduce_sum(loss, *axis);
    return update(step, loss, gradients);
  }

  /// One action: the forward or backward pass of one micro-batch through one of this rank's stages.
  /// @param received     (2, R, C), or (2, R / tp, C): of each of its runs of tokens, R = B T / (2 c) rows of the stream from
  ///                     the stage before, or of its gradient from the stage after.
  /// @param send_buffer  of the same shape, for the result.
  LossSum perform(const Action& action, std::int64_t step, const Tensor& received, const Tensor& send_buffer)
  {
    LossSum loss;
    const std::size_t place = plan.place_of(action);
    LocalStage& own = stages[place];
    const Range sequences{share.first + action.micro_batch * run.batch.micro_batch, run.batch.micro_batch};
    // NEW: a micro-batch in flight has a slot for each run of its tokens.
    std::vector<TokenRun> both = in_flight.before(own, place, action, [&](const TokenRun& mine) {
      return run.load(mine.kept, sequences, step, mine.tokens);
    });
    if (action.kind == ActionKind::forward) {
      loss = layers.forward(own, both, received, send_buffer);
    } else {
      // The gradients of both runs add up; in exact arithmetic in the tree over the tokens of a sequence (lesson 14).
      const GradientTensors d = own.gradients->begin(sequences);
      const auto of_run = of_runs[place].begin(d);
      experts.begin(place, sequences);
      for (std::size_t k = 0; k < both.size(); ++k)
        both[k].gradient = stage_tensors(plan.table, own.stage, of_run[k].flat, of_run[k].tied);
      layers.backward(own, place, both, received, send_buffer);
      // First sum, along tp, of what sequence parallelism divides: for each run.
      for (std::size_t k = 0; k < both.size(); ++k) layers.sum_over_rows(place, k, of_run[k].flat);
      // NEW: second sum, along cp: for each sequence, or (in fast arithmetic) after the step.
      of_runs[place].end(d);
      experts.end(place, sequences);
      own.gradients->end(sequences);
    }
    charge(action);
    in_flight.after(own, place, action, true);
    return loss;
  }

  /// Loss of the whole validation split. The rows of experts travel between replicas, so all of them compute equally many
  /// micro-batches; what is beyond the end counts nothing.
  LossSum evaluate()
  {
    const std::int64_t B = run.batch.micro_batch, replicas = mesh_plan.layout.dp;
    const std::int64_t passes = (run.validation.windows() + B * replicas - 1) / (B * replicas);
    const auto load = [&](const TokenRun& mine, std::int64_t pass) {
      return run.load_validation(mine.kept, {(pass * replicas + mesh_plan.place.dp) * B, B}, mine.tokens);
    };
    LossSum loss =
        in_flight.forward_only(pipeline, stages, passes, load, [&](auto&... of) { return layers.forward(of...); });
    for (Group* axis : {&cp, &ep, &dp, &pp}) all_reduce_sum(loss, *axis);
    return loss;
  }

  /// The token that follows a text, the same on all ranks, from a forward pass over its last T tokens. A causal model ignores
  /// the padding after them.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    const std::int64_t last = std::min(std::ssize(text), run.batch.sequence) - 1;
    std::int64_t token = 0;  // where the last stage has the last token; zero on all other ranks
    const auto load = [&](const TokenRun& mine, std::int64_t) {
      return run.load_text(mine.kept, text, run.batch.micro_batch, mine.tokens);
    };
    in_flight.forward_only(pipeline, stages, 1, load, [&](const LocalStage& own, auto& both, auto&... rows) {
      const LossSum none = layers.forward(own, both, rows...);
      for (const TokenRun& mine : both)
        if (own.stage.last && mine.tokens.contains(last))
          token = pick_token(logits_of(mine.kept.head, last - mine.tokens.first), run.options.sampling, number);
      return none;
    });
    for (Group* axis : {&cp, &pp}) all_reduce_sum(token, *axis);
    return static_cast<Token>(token);
  }

 private:
  /// The gradients of the parameters that this rank updates, range by range.
  std::vector<Tensor> whole_gradients()
  {
    const auto counted = count("tied"), of_dp = count("dp"), of_ep = count("ep"), of_cp = count("cp");
    const auto span = run.time.span(Work::exposed, "summing gradients");
    std::vector<Tensor> sums, of_experts;
    for (std::size_t place = 0; place < stages.size(); ++place) {
      const std::vector<Range> of_stage = ranges_of(plan.table, stages[place].stage);
      for (const SumOfRange& part : by_range(stages[place].gradients->sums(), of_stage))
        exchange(Way::to_shards, part.sum.whole(), part.range);
      for (const Tensor& range : cut(stages[place].gradients->total(), of_stage)) sums.push_back(range);
      // NEW: the gradients of experts: of the rows of all ranks along ep, which have come here with them.
      if (const Tensor total = experts.total(place); !total.empty()) {
        of_experts.push_back(total);
        exchange(Way::to_shards, total, mesh_plan.experts_of(stages[place].stage));
      }
    }
    sums.insert(sums.end(), of_experts.begin(), of_experts.end());
    // The last sum, over both ends of the pipeline, as in lesson 10.
    std::vector<Tensor> gradients = mesh_plan.updated_of(sums);
    for (std::size_t i = 0; ends && i < gradients.size(); ++i)
      if (ranges[i].first == 0) all_reduce_sum(gradients[i], *ends);
    return gradients;
  }

  enum class Way { to_shards, back };

  /// NEW: third sum, over replicas, on the way to shards; and the way back, from updated shards to whole parameters. Dense
  /// parameters have replicas along ep, dp and cp, experts along dp and cp. With ZeRO-1 each axis divides what the one before
  /// it has left: a reduce-scatter of a reduce-scatter's shard, and back the innermost axis is gathered first.
  /// @param tensor  gradients of a range, or its parameters.
  /// @param range   of the table.
  void exchange(Way way, const Tensor& tensor, Range range)
  {
    // BEGIN EXERCISE 16.1
    std::vector<Tensor> left{tensor};  // what each axis divides
    const std::vector<Replicas> axes = mesh_plan.replicas_of(range);
    for (const Replicas& along : axes) {
      Group& group = mesh.group(along.axis);
      const bool sums = way == Way::to_shards && !along.added_up;
      if (sums && mesh_plan.zero) reduce_scatter_sum(left.back(), group);
      if (sums && !mesh_plan.zero) all_reduce_sum(left.back(), group);
      if (mesh_plan.zero) left.push_back(shard(left.back(), along.part));
    }
    if (way == Way::to_shards || !mesh_plan.zero) return;
    for (std::size_t level = axes.size(); level-- > 0;) all_gather(left[level], mesh.group(axes[level].axis));
    // END EXERCISE
  }

  /// The way back of all parameters.
  void gather_parameters()
  {
    const auto of_dp = count("dp"), of_ep = count("ep"), of_cp = count("cp");
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    const std::vector<Tensor> all = cut(parameters.tensor(), ranges);
    for (std::size_t i = 0; i < all.size(); ++i) exchange(Way::back, all[i], ranges[i]);
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip; each rank updates its shard of its stages.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& gradients)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    // Every parameter of the model counts once (mesh_plan.hpp). NEW: experts on each rank along ep.
    decltype(LossSum::nats) squares;
    for (const Tensor& counted : mesh_plan.counted_of(gradients)) squares += run.kernels->squared_norm(counted);
    for (Group* axis : {&tp, &pp, &ep}) all_reduce_sum(squares, *axis);
    for (Group* axis : {&dp, &cp})
      if (mesh_plan.zero) all_reduce_sum(squares, *axis);
    // BEGIN TWIN 04.3
    const double norm = std::sqrt(squares.value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(run, step, loss.mean(), norm, adamw.shards(), gradients, mesh.world());
    adamw.step(run.kernels, gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    return {loss.mean(), norm, learning_rate};
    // END TWIN
  }

  /// The logits of row @p row of the last stage, from the shards of all tp ranks.
  std::vector<float> logits_of(const HeadActivations& head, std::int64_t row)
  {
    const std::int64_t stored = run.config.stored_vocabulary(tp.ranks());
    const Buffer all(run.memory, Category::workspace, run.shape.type, {tp.ranks() * stored}, "all logits");
    return gather_logits(run, head.logits.slice({row * stored, stored}), all.tensor(), tp);
  }
  /// A replica's shard of a range.
  static Tensor shard(const Tensor& range, Part part)
  {
    return range.slice(Partition(range.elements(), part.count).shard(part.index));
  }
  /// Advances the virtual clock by an action, except for the pairs of attention, which charges them itself.
  void charge(const Action& action)
  {
    run.charge_flops(axes_plan.without_pairs[static_cast<std::size_t>(action.stage)].of(action.kind),
                     name_of(action.kind).c_str());
  }
  /// Counts what is sent along an axis until the end of the scope, in total and by receiver.
  Run::Counted count(const std::string& axis) { return run.count(axis); }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = FiveAxesOptions;
  static constexpr const char *name = "16_five_axes", *title = "Five axes on one mesh";

  FiveAxes(Run& r, const Options& o) : run(r), options(o)
  {
    mesh_plan.reserve_scratch(tp);
    for (const CollectiveShape& call : mesh_plan.replicas.back().also) reserve_scratch(call, cp);
    for (LocalStage& own : stages) {
      of_runs.emplace_back(run, gradient_layout(plan.table, own.stage, options.gradients), options.order, cp);
      // An expert adds its own bias; the branch adds none.
      for (std::size_t i = 0; i < own.model.branches.size(); ++i)
        if (own.model.branches[i].experts()) own.weights.branches[i].out_bias = work[0]->experts.no_bias;
    }
    if (axes_plan.has_experts()) run.stream->zero(work[0]->experts.no_bias);
  }

  /// The parameters that this rank updates and their moments, with the copy of the token embedding.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  /// Those of them that this rank owns. With ZeRO-1 the replicas together count as one.
  HeldShards owned_shards() { return {plan.table, mesh_plan.counted_of(adamw.shards()), *run.stream}; }
  int replica() const { return mesh_plan.zero ? 0 : dp.rank() * cp.ranks() + cp.rank(); }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round(run.kernels);
    gather_parameters();
  }
  std::string describe()
  {
    return fmt::format("{}; collectives by {}; {}{}", rankwise::describe(axes_plan.degrees),
                       describe_algorithm(mesh.world()), rankwise::describe(plan),
                       options.mesh.show_groups ? "\n" + mesh.table() : "");
  }
  void report(Report& report)
  {
    check_tied(report, ranges, adamw.shards(), *run.stream, ends.get());
    for (const char* axis : {"tp", "cp", "pp", "tied", "ep", "dp"})
      check_receivers(report, axis, run.receivers[axis], mesh_plan.line(axis));
    experts.report(report);
    in_flight.report(report, performed, pp);
  }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                   // device, data, ledgers
  const Options& options;                                     // what was asked for
  FiveAxesPlan axes_plan = plan_of(options, run.session);     // this rank's place, and its shards
  const MeshPlan& mesh_plan = axes_plan.mesh;                 // as in lesson 10
  const PipelinePlan& plan = mesh_plan.pipeline;              // stages and schedule of a replica
  Mesh mesh{run.session, mesh_plan.axes, run.group_setup()};  // all N ranks, and a group along each axis
  Group &pp = mesh.group("pp"), &dp = mesh.group("dp"), &ep = mesh.group("ep"), &cp = mesh.group("cp"),
        &tp = mesh.group("tp");
  std::unique_ptr<Group> ends = group_of_ends(pp, run.group_setup());  // first and last stage: the tied embedding
  Range share = Partition(run.batch.global_batch, static_cast<int>(mesh_plan.layout.dp))
                    .shard(mesh_plan.place.dp);    // sequences
  std::vector<Range> ranges = mesh_plan.ranges();  // of the table: this rank's stages, then their experts
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {elements_of(ranges)}, "parameters"};
  ShardedAdamW adamw{
      run.memory,       *run.stream, plan.table, mesh_plan.updated(), mesh_plan.updated_of(parameters.tensor()),
      run.options.adamw};  // moments of what this rank updates
  Pipeline pipeline{pp,      plan.schedule.virtual_stages, run.group_setup(), run.shape.type, mesh_plan.rows(),
                    run.time};                // channels between stages
  RunWorkspaces work = make_workspaces(run);  // scratch of each run of tokens
  std::vector<LocalStage> stages =
      make_local_stages(run, plan, pp.rank(), parameters.tensor(), *work[0]);  // of this rank
  RunsInFlight in_flight{run, axes_plan, stages, work};                        // activations of both runs
  std::vector<ContextGradients> of_runs;  // of each stage: gradients of both runs
  ExpertsOnMesh experts{run, axes_plan, stages, experts_of_all(), ep, cp, tp};  // of this rank's stages
  StageLayers layers{run, axes_plan, stages, work, experts, cp, tp};  // forward and backward passes of both runs
  std::vector<PerformedAction> performed;                             // in the last step

  /// The parameters of experts, which follow those of the stages.
  Tensor experts_of_all() const
  {
    const std::int64_t dense = elements_of(ranges_of(plan.table, mesh_plan.stages()));
    return parameters.tensor().slice({dense, parameters.tensor().elements() - dense});
  }
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::FiveAxes>(argc, argv);
}
