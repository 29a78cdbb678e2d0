// Lesson 10: data x tensor x pipeline parallelism on one mesh
//
// Builds on:    lesson 09 (pipeline parallelism)
// New idea:     the N = dp tp pp ranks are points of a mesh, and each has a group along each axis: the
//               tensor-parallel ranks (lesson 08) of its stage (lesson 09), the stages of its pipeline, and its
//               replicas, which shard the optimizer states (lesson 04). A step combines all three. New is the order
//               in which gradients are summed: over tensor-parallel ranks in every micro-batch; then over replicas;
//               then over the two ends of the pipeline, which share the token embedding. The norm counts each
//               parameter once.
// Memory:       4 P / (tp pp) bytes of parameters, as many of gradients, and 8 P / N of optimizer states (in bf16
//               12)
// Traffic:      along tp as in lesson 08, along pp as in lesson 09 (1 / tp of it with --sequence-parallel), along
//               dp 2 (dp-1)/dp P / (tp pp) numbers
// Paper:        Narayanan et al. 2021 (Megatron-LM), section 3; Rajbhandari et al. 2020 (ZeRO), section 5
//
// Sample runs:  mpirun -np 8 build/lessons/10_3d_parallel --steps=3 --show-groups
//               mpirun -np 8 build/lessons/10_3d_parallel --steps=3 --arithmetic=exact --sequence-parallel --zero=0
//             * mpirun -np 8 build/lessons/10_3d_parallel --device=cuda --steps=20    (* needs a GPU; eight of them for NCCL)
// Expect:       the loss column of lesson 01, whatever the mesh is.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "lessons/frame/train.hpp"
#include "lessons/parallel/mesh/divided_layers.hpp"
#include "lessons/parallel/mesh/mesh_costs.hpp"
#include "lessons/parallel/mesh/mesh_forecast.hpp"
#include "lessons/parallel/mesh/mesh_traffic.hpp"
#include "lessons/parallel/pipeline/schedule_report.hpp"
#include "lessons/parallel/pipeline/text_pipeline.hpp"
#include "lessons/parallel/pipeline/tied_embedding.hpp"
#include "lessons/parallel/tensor/vocabulary_parallel_loss.hpp"
#include "lessons/parallel/zero/gradient_exchange.hpp"

namespace rankwise {

/// One rank of the mesh, with its shard of its stages. The frame (lessons/frame/train.hpp) does the rest.
class MeshParallel {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Losses and gradients are added up as sums over tokens, over micro-batches and replicas; update() divides
    // them.
    LossSum loss;
    for (LocalStage& own : stages) own.gradients->clear();
    {
      // NEW: each replica runs its own schedule over G / dp sequences, in m = G / (dp B) micro-batches. The tp
      // ranks of a stage carry out the same list of actions, and each has a channel to the rank with its shard in
      // the next stage: (R, C) rows, or (R / tp, C) with sequence parallelism. Warm-up, steady state and cool-down
      // are as in lesson 09.
      const auto counted = count("pp"), counted_parts = count("tp");
      performed = pipeline.run(plan.schedule, [&](const Action& action, const auto&... rows) {
        loss += perform(action, step, rows...);
      });
    }
    // After the pipeline flush gradients are summed over replicas and over both ends of the pipeline. NEW: the loss
    // is summed along dp and pp, but not along tp, whose ranks all have it.
    const std::vector<Tensor> gradients = whole_gradients();
    for (Group* axis : {&dp, &pp}) all_reduce_sum(loss, *axis);
    return update(step, loss, gradients);
  }

  /// One action: the forward or backward pass of one micro-batch through one of this rank's stages.
  /// @param received     (R, C), or (R / tp, C): the stream from the stage before, or its gradient from the stage
  ///                     after.
  /// @param send_buffer  of the same shape, for the result, which is sent on. Both are empty at the ends of the
  ///                     pipeline.
  LossSum perform(const Action& action, std::int64_t step, const Tensor& received, const Tensor& send_buffer)
  {
    LossSum loss;
    LocalStage& own = stages[plan.place_of(action)];
    // A micro-batch in flight has a slot of the stash for its activations. NEW: its sequences are of this replica.
    InFlight& m = own.stash.before(action);
    const Range sequences{share.first + action.micro_batch * run.batch.micro_batch, run.batch.micro_batch};
    if (action.kind == ActionKind::forward) {
      // All stages and all tp ranks of a replica load the same tokens.
      m.batch = run.load(m.kept, sequences, step);
      loss = forward(own, m, received, send_buffer);
    } else {
      // The gradients of the stage's shard are summed over micro-batches.
      const GradientTensors d = own.gradients->begin(sequences);
      RowGradients& over_rows = row_gradients[plan.place_of(action)];
      backward(own, stage_tensors(plan.table, own.stage, d.flat, d.tied), over_rows, m, received, send_buffer);
      // NEW: first sum, along tp. With sequence parallelism the gradients of norms and of biases after a sum cover
      // this rank's tokens; an all-reduce a micro-batch completes them (lesson 08). All others are complete.
      over_rows.add_to(d.flat, tp);
      own.gradients->end(sequences);
    }
    // The last action of the micro-batch in this stage frees its slot.
    own.stash.after(action, true);
    charge(run.messages.clock(), plan, action);
    return loss;
  }

  /// Forward pass of a stage. The last stage returns the loss; what the backward pass needs is kept.
  LossSum forward(const LocalStage& own, const InFlight& m, const Tensor& received, const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch] = m;
    // The first stage has the embedding; the others begin with the stream from the stage before.
    if (stage.first) {
      // NEW: a rank looks up V / tp vocabulary entries; operator g of lesson 08 makes the rows whole.
      model.embedding.lookup(work.output, weights.embedding, batch);
      model.embedding.add(kept.stream(0), parts.sum(work.output), weights.embedding,
                          tokens_of(batch, run.shape.tokens));
    } else {
      run.stream->copy(kept.stream(0), received);
    }
    // The last branch writes into the send buffer. NEW: the last stage's loss is that of a divided vocabulary.
    forward_branches(own, 0, model.branches.size(), m, send_buffer);
    return stage.last ? vocabulary_parallel_loss(model.head, weights.head, kept.head, batch, parts) : LossSum{};
  }

  /// Adds the gradient of the loss with respect to the stage's parameters to @p gradient. NEW: those that are sums
  /// over this rank's rows only are added to @p over_rows.
  void backward(const LocalStage& own, const ModelTensors& gradient, const RowGradients& over_rows,
                const InFlight& m, const Tensor& received, const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch] = m;
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors &p_head = weights.head, &d_head = gradient.head;
    const MicroBatch rows = tokens_of(batch, run.shape.tokens);  // this rank's tokens, between the divided layers
    // The last stage starts from the loss; the others begin with dx from the stage after them.
    if (stage.last) {
      // NEW: operator f. Each rank's columns give a partial sum of the gradient in front of them, summed along tp.
      // The logits are (R, V / tp), and so is their gradient, which replaces them.
      model.head.apply_backward(output, d_head, parts.regathered(kept.head), p_head, batch);
      const Tensor dhead = parts.sum(output);
      run.stream->zero(dx);
      over_rows.normalise_backward(model.head, dx, d_head, dhead, kept.head, p_head, rows);
    } else {
      run.stream->copy(dx, received);
    }

    // The branches of this stage, last first. Each adds its contribution to dx, and parameter gradients to d.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // With recomputation a micro-batch in flight keeps only the inputs of blocks, (R, C) or (R / tp, C).
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(own, i - 1, i + 1, m);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors& d = gradient.branches[i];
      // NEW: g in the backward pass: nothing, or with sequence parallelism an all-gather of the rows of doutput.
      const Tensor mine = over_rows.add_backward(branch, d, dx, output, rows);
      const Tensor doutput = parts.gather(mine, output);
      branch.apply_backward(output, d, doutput, work.wide, parts.regathered(kept.branches[i]), p, batch);
      // NEW: f in the backward pass: an all-reduce of 2 (tp-1)/tp R C numbers, or a reduce-scatter of half as many.
      const Tensor dnormalised = parts.sum(output);
      over_rows.normalise_backward(branch, dx, d, dnormalised, kept.branches[i], p, rows);
    }
    // dx is now the gradient of the stage's input, which the stage before waits for. NEW: the embedding ended with
    // g, so the first stage gathers all rows of dx; between stages (R / tp, C) rows are sent as they are.
    if (stage.first)
      model.embedding.backward(gradient.embedding, parts.gather(dx, output), batch);
    else
      run.stream->copy(send_buffer, dx);
  }

  /// Loss of the whole validation split, of which each replica computes every dp-th micro-batch.
  LossSum evaluate()
  {
    LossSum loss = validate(run, pipeline, plan, stages, {dp.rank(), dp.ranks()},
                            [&](const auto&... of) { return forward(of...); });
    for (Group* axis : {&dp, &pp}) all_reduce_sum(loss, *axis);
    return loss;
  }

  /// The token that follows a text, the same on all ranks. Stages compute it one after the other, and each
  /// broadcasts its output.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run, plan, stages, pp, &tp);
    return generator->next_token(text, number);
  }

 private:
  /// Forward pass of branches [first, last) of a stage.
  /// @param send_buffer  for the output of the stage, except in the last one. Empty on recomputation: the next
  ///                     stage has that output already.
  void forward_branches(const LocalStage& own, std::size_t first, std::size_t last, const InFlight& m,
                        const Tensor& send_buffer = {})
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch] = m;
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      // The output of the stage's last branch is computed directly into the send buffer.
      const bool sent_on = i + 1 == model.branches.size() && !stage.last;
      const Tensor& next = sent_on ? send_buffer : kept.stream(i + 1);
      // NEW: f and g of lesson 08 around the divided layers. All tp ranks reach them in the same order, because
      // they carry out the same actions, so the messages of one micro-batch never meet those of another.
      branch.normalise(parts.own(kept.branches[i]), p);
      branch.apply(work.output, parts.gathered(kept.branches[i]), p, batch);
      const Tensor sum = parts.sum(work.output);
      if (!next.empty()) branch.add(next, kept.branches[i], sum, p, tokens_of(batch, run.shape.tokens));
    }
  }

  /// The gradients of the parameters that this rank updates, range by range. NEW: the order of the sums: along tp
  /// in every micro-batch, then along dp, then over the two ends of the pipeline.
  std::vector<Tensor> whole_gradients()
  {
    const auto counted = count("tied"), counted_replicas = count("dp");
    const auto span = run.time.span(Work::exposed, "summing gradients");
    // NEW: second sum, along dp. ZeRO-1 needs it only for the shard that a rank updates: a reduce-scatter of
    // (dp-1)/dp of the P / (tp pp) gradients, where an all-reduce sends twice as many.
    const auto sum_over_replicas = [&](const PartialSum& range) {
      if (!mesh_plan.zero) return all_reduce_sum(range, dp);
      reduce_scatter_sum(range, dp);
    };
    std::vector<Tensor> sums;
    for (LocalStage& own : stages) {
      const std::vector<Range> of_stage = ranges_of(plan.table, own.stage);
      // Range by range, as parameters are sharded.
      for (const SumOfRange& part : by_range(own.gradients->sums(), of_stage)) sum_over_replicas(part.sum);
      for (const Tensor& range : cut(own.gradients->total(), of_stage)) sums.push_back(range);
    }
    // NEW: third sum, over both ends of the pipeline: of the token embedding only the shard that this rank updates,
    // V C / (tp dp) numbers with ZeRO-1. It follows the sum along dp, so both of its terms are complete.
    std::vector<Tensor> gradients = mesh_plan.updated_of(sums);
    for (std::size_t i = 0; ends && i < gradients.size(); ++i)
      if (ranges[i].first == 0) all_reduce_sum(gradients[i], *ends);
    return gradients;
  }

  /// NEW: with ZeRO-1 each replica has updated its shard of this rank's parameters; an all-gather of (dp-1)/dp of
  /// them along dp makes every replica whole again.
  void gather_parameters()
  {
    // Without ZeRO-1 every replica has made the whole update.
    if (!mesh_plan.zero) return;
    const auto counted = count("dp");
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    for (const Tensor& range : cut(parameters.tensor(), ranges)) all_gather(range, dp);
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip; each rank updates its shard of its stages.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& gradients)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    // NEW: each rank adds the squares of the gradients that it owns (mesh_plan.hpp), so that every parameter of the
    // model counts once: replicated ones on tp rank 0, the token embedding in the first stage, with ZeRO-1 each
    // shard on the replica that updates it.
    decltype(LossSum::nats) squares;
    for (const Tensor& counted : mesh_plan.counted_of(gradients)) squares += run.kernels->squared_norm(counted);
    for (Group* axis : {&tp, &pp}) all_reduce_sum(squares, *axis);
    if (mesh_plan.zero) all_reduce_sum(squares, dp);
    // BEGIN TWIN 04.3
    // The mean is over the tokens of the whole global batch, whichever replica computed them.
    const double norm = std::sqrt(squares.value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(run, step, loss.mean(), norm, adamw.shards(), gradients, mesh.world());
    // Of (P / (tp pp)) parameters a rank updates 1 / dp with ZeRO-1; then the replicas exchange their shards.
    adamw.step(run.kernels, gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    return {loss.mean(), norm, learning_rate};
    // END TWIN
  }

  /// Counts what is sent along an axis until the end of the scope, in total and by receiver.
  Run::Counted count(const std::string& axis) { return run.count(axis); }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = MeshParallelOptions;
  static constexpr const char *name = "10_3d_parallel", *title = "Data x tensor x pipeline parallelism on one mesh";

  MeshParallel(Run& r, const Options& o) : run(r), options(o) { mesh_plan.reserve_scratch(tp); }

  /// The parameters that this rank updates and their moments, with the copy of the token embedding.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  /// Those of them that this rank owns, so that each parameter has one owner in a replica. With ZeRO-1 no replica
  /// has all of them, and the replicas together count as one.
  HeldShards owned_shards() { return {plan.table, mesh_plan.counted_of(adamw.shards()), *run.stream}; }
  int replica() const { return mesh_plan.zero ? 0 : dp.rank(); }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round(run.kernels);
    gather_parameters();
  }
  std::string describe()
  {
    return fmt::format("dp={} tp={} pp={}; collectives by {}; {}{}", dp.ranks(), tp.ranks(), pp.ranks(),
                       describe_algorithm(mesh.world()), rankwise::describe(plan),
                       options.mesh.show_groups ? "\n" + mesh.table() : "");
  }
  void report(Report& report)
  {
    check_tied(report, ranges, adamw.shards(), *run.stream, ends.get());
    for (const char* axis : {"tp", "pp", "tied", "dp"})
      check_receivers(report, axis, run.receivers[axis], mesh_plan.line(axis));
    report_schedule(report, plan, performed, run, pp);
  }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                              // device, data, ledgers
  const Options& options;                                                // what was asked for
  MeshPlan mesh_plan = plan_of(options, run.session);                    // this rank's place, and its shards
  const PipelinePlan& plan = mesh_plan.pipeline;                         // stages and schedule of a replica
  Mesh mesh{run.session, axes_of(mesh_plan.layout), run.group_setup()};  // all N ranks, and a group along each axis
  Group &pp = mesh.group("pp"), &dp = mesh.group("dp"), &tp = mesh.group("tp");
  std::unique_ptr<Group> ends = group_of_ends(pp, run.group_setup());  // first and last stage: the tied embedding
  Range share = Partition(run.batch.global_batch, dp.ranks()).shard(dp.rank());  // sequences of this replica
  std::vector<Range> ranges = mesh_plan.ranges();                                // of the table: this rank's stages
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {elements_of(ranges)}, "parameters"};
  ShardedAdamW adamw{
      run.memory,       *run.stream, plan.table, mesh_plan.updated(), mesh_plan.updated_of(parameters.tensor()),
      run.options.adamw};  // (P/N) moments
  Pipeline pipeline{pp,      plan.schedule.virtual_stages, run.group_setup(), run.shape.type, plan.rows(),
                    run.time};                        // channels between stages
  Workspace work{run.memory, run.config, run.shape};  // scratch, shared by all micro-batches
  TensorParallelMessages parts{tp,   run.shape,   run.config.channels,
                               work, run.kernels, run.time};  // operators f and g
  std::vector<LocalStage> stages =
      make_local_stages(run, plan, pp.rank(), parameters.tensor(), work);  // of this rank, with stash and gradients
  std::vector<RowGradients> row_gradients = make_row_gradients(run, stages);  // of each stage: sums over rows
  std::vector<PerformedAction> performed;                                     // in the last step
  std::optional<TextPipeline> generator;                                      // used by --sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::MeshParallel>(argc, argv);
}
