// Lesson 10: data x tensor x pipeline parallelism on one mesh
//
// Builds on:    lesson 09 (pipeline parallelism)
// New idea:     the N = dp tp pp ranks are points of a mesh, and each has a group along each axis: the parts of every layer (lesson
//               08) inside a stage (lesson 09), and its replicas, which share out the optimizer states (lesson 04). A step is the
//               sum of theirs; what is new is the order in which gradients come together: parts first, in every pass; then
//               replicas; then the two ends of the pipeline, which share the token embedding; and the norm counts each
//               parameter once.
// Memory:       4 P / (tp pp) bytes of parameters, as many of gradients, and 8 P / N of optimizer states (in bf16 12)
// Traffic:      to parts as lesson 08, to stages as lesson 09 (1 / tp of it with --sequence-parallel), to replicas
//               2 (dp-1)/dp P / (tp pp) numbers
// Paper:        Narayanan et al. 2021 (Megatron-LM), section 3; Rajbhandari et al. 2020 (ZeRO), section 5
//
// Sample runs:  build/lessons/10_3d_parallel --steps=3
//               mpirun -np 8 build/lessons/10_3d_parallel --steps=3 --show-groups
//               mpirun -np 4 build/lessons/10_3d_parallel --steps=3 --dp=2 --tp=2 --pp=1 --dropout=0.1
//               mpirun -np 8 build/lessons/10_3d_parallel --steps=3 --arithmetic=exact --sequence-parallel --zero=0
//               mpirun -np 8 build/lessons/10_3d_parallel --steps=3 --schedule=zero-bubble --recompute=block
//             * mpirun -np 8 build/lessons/10_3d_parallel --device=cuda --steps=20    (* needs a GPU; eight of them for NCCL)
// Expect:       the loss column of lesson 01, whatever the mesh is.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "lessons/09_pipeline_parallel/schedule_report.hpp"
#include "lessons/09_pipeline_parallel/tied_embedding.hpp"
#include "lessons/10_3d_parallel/costs.hpp"
#include "lessons/10_3d_parallel/divided_layers.hpp"
#include "lessons/10_3d_parallel/mesh_forecast.hpp"
#include "lessons/10_3d_parallel/mesh_traffic.hpp"
#include "lessons/10_3d_parallel/text_on_mesh.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// What this rank holds, and a training step with it. The frame (lessons/frame/train.hpp) does the rest.
class MeshParallel {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    LossSum loss;
    for (LocalStage& own : stages) own.gradients->clear();
    {
      // NEW: each replica has a pipeline of its own; the ranks that divide a stage's layers go through the same actions.
      const auto counted = count("pp"), counted_parts = count("tp");
      performed = pipeline.run(plan.schedule, [&](const Action& action, const auto&... rows) {
        loss += perform(action, step, rows...);
      });
    }
    const std::vector<Tensor> gradients = whole_gradients();
    for (Group* axis : {&dp, &pp}) all_reduce_sum(loss, *axis);
    return update(step, loss, gradients);
  }

  /// One action: a pass of one micro-batch through one of this rank's stages.
  /// @param received     (R, C) the stream, or its gradient, that came from the stage before or after.
  /// @param send_buffer  (R, C) for what is sent on. Both are empty at the ends of the pipeline.
  LossSum perform(const Action& action, std::int64_t step, const Tensor& received, const Tensor& send_buffer)
  {
    LossSum loss;
    LocalStage& own = stages[plan.place_of(action)];
    InFlight& m = own.stash.before(action);  // keeps the activations from the forward to the backward pass
    const Range sequences{share.first + action.micro_batch * run.batch.micro_batch, run.batch.micro_batch};
    if (action.kind == ActionKind::forward) {
      m.batch = run.load(m.kept, sequences, step);
      loss = forward(own, m, received, send_buffer);
    } else if (action.kind == ActionKind::backward_input) {
      deferred_weights(own, m).backward_input(received, send_buffer);
    } else {
      const GradientTensors d = own.gradients->begin(sequences);
      const ModelTensors gradients = stage_tensors(plan.table, own.stage, d.flat, d.tied);
      if (action.kind == ActionKind::backward)
        backward(own, gradients, m, received, send_buffer);
      else
        deferred_weights(own, m).backward_weights(gradients);
      // NEW: where rows are divided the parts' sums over rows come together once a micro-batch (lesson 08).
      layers.of(own, m).over_rows().add_to(d.flat, tp);
      own.gradients->end(sequences);
    }
    own.stash.after(action, true);
    charge(run.messages.clock(), plan, action);
    return loss;
  }

  /// Forward pass of a stage: its loss, if it is the last one; what the backward pass needs is kept.
  LossSum forward(const LocalStage& own, const InFlight& m, const Tensor& received, const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch, place] = m;
    if (stage.first) {
      model.embedding.lookup(work.output, weights.embedding, batch);
      // NEW: what a part of a layer gives is a partial sum, and rows go on in sum: as in lesson 08, in every stage.
      model.embedding.add(kept.stream(0), parts.sum(work.output), weights.embedding,
                          tokens_of(batch, run.shape.tokens));
    } else {
      run.stream->copy(kept.stream(0), received);
    }
    forward_branches(own, 0, model.branches.size(), m, send_buffer);
    return stage.last ? vocabulary_parallel_loss(model.head, weights.head, kept.head, batch, parts) : LossSum{};
  }

  /// Adds the gradient of the loss with respect to the stage's parameters to @p gradient.
  void backward(const LocalStage& own, const ModelTensors& gradient, const InFlight& m, const Tensor& received,
                const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch, place] = m;
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors &p_head = weights.head, &d_head = gradient.head;
    const MicroBatch rows = tokens_of(batch, run.shape.tokens);  // between the divided layers: this rank's
    const RowGradients& over_rows = layers.of(own, m).over_rows();
    if (stage.last) {
      model.head.apply_backward(output, d_head, parts.regathered(kept.head), p_head, batch);
      const Tensor dhead = parts.sum(output);
      run.stream->zero(dx);
      over_rows.normalise_backward(model.head, dx, d_head, dhead, kept.head, p_head, rows);
    } else {
      run.stream->copy(dx, received);
    }

    for (std::size_t i = model.branches.size(); i-- > 0;) {
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(own, i - 1, i + 1, m);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors& d = gradient.branches[i];
      const Tensor mine = over_rows.add_backward(branch, d, dx, output, rows);
      const Tensor doutput = parts.gather(mine, output);
      branch.apply_backward(output, d, doutput, work.wide, parts.regathered(kept.branches[i]), p, batch);
      const Tensor dnormalised = parts.sum(output);
      over_rows.normalise_backward(branch, dx, d, dnormalised, kept.branches[i], p, rows);
    }
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

  /// The token that follows a text, the same on all ranks. It is not known before all stages have been passed through, one
  /// after the other: each sends all ranks what it has made.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run, plan, stages, pp, tp);
    return generator->next_token(text, number);
  }

 private:
  /// Forward pass of branches [first, last) of a stage.
  /// @param send_buffer  where the output of its last branch is put, except in the last stage; empty where a block is computed
  ///                     again, since the next stage has had that output.
  void forward_branches(const LocalStage& own, std::size_t first, std::size_t last, const InFlight& m,
                        const Tensor& send_buffer = {})
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch, place] = m;
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const bool sent_on = i + 1 == model.branches.size() && !stage.last;
      const Tensor& next = sent_on ? send_buffer : kept.stream(i + 1);
      branch.normalise(parts.own(kept.branches[i]), p);
      branch.apply(work.output, parts.gathered(kept.branches[i]), p, batch);
      const Tensor sum = parts.sum(work.output);
      if (!next.empty()) branch.add(next, kept.branches[i], sum, p, tokens_of(batch, run.shape.tokens));
    }
  }

  /// Both halves of a stage's backward pass, of which the second is deferred (zero bubble).
  DeferredWeights deferred_weights(const LocalStage& own, const InFlight& m)
  {
    const auto recompute = [&](std::size_t first, std::size_t last) { forward_branches(own, first, last, m); };
    return {run, own, m, work, layers.of(own, m), recompute};
  }

  /// The gradients of what this rank updates, range by range.
  /// NEW: the order in which gradients come together. The parts of a layer have been summed in every pass; now replicas are,
  /// and then the two ends of the pipeline, which share the token embedding.
  std::vector<Tensor> whole_gradients()
  {
    const auto counted = count("tied"), counted_replicas = count("dp");
    const auto span = run.time.span(Work::exposed, "summing gradients");
    const auto sum_over_replicas = [&](const Tensor& range) {  // with ZeRO-1 each is left with what it updates
      if (!mesh_plan.zero) return all_reduce_sum(range, dp);
      reduce_scatter_sum(range, dp);
    };
    std::vector<Tensor> sums;
    for (LocalStage& own : stages) {
      const std::vector<Range> lengths = ranges_of(plan.table, own.stage);
      const std::vector<Tensor> of_stage = own.gradients->sums();
      for (const Tensor& range : cut(of_stage.front(), lengths)) sum_over_replicas(range);
      if (of_stage.size() > 1) sum_over_replicas(of_stage.back());
      for (const Tensor& range : cut(own.gradients->total(), lengths)) sums.push_back(range);
    }
    const std::vector<Tensor> gradients = mesh_plan.updated_of(sums);
    for (std::size_t i = 0; ends && i < gradients.size(); ++i)
      if (ranges[i].first == 0) all_reduce_sum(gradients[i], *ends);
    return gradients;
  }

  /// Copies every parameter from the replica that updates it to all others.
  void gather_parameters()
  {
    if (!mesh_plan.zero) return;
    const auto counted = count("dp");
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    for (const Tensor& range : cut(parameters.tensor(), ranges)) all_gather(range, dp);
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip; each rank updates its share of its stages.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& gradients)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    // NEW: each rank adds what it answers for (mesh_plan.hpp), so that every parameter of the model counts once.
    decltype(LossSum::nats) squares;
    for (const Tensor& counted : mesh_plan.counted_of(gradients)) squares += run.kernels->squared_norm(counted);
    for (Group* axis : {&tp, &pp}) all_reduce_sum(squares, *axis);
    if (mesh_plan.zero) all_reduce_sum(squares, dp);
    const double norm = std::sqrt(squares.value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(step, loss.mean(), norm, *run.kernels, adamw.shards(), gradients, mesh.world());
    adamw.step(*run.kernels, gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    return {loss.mean(), norm, learning_rate};
  }

  /// Counts what is sent along an axis until the end of the scope, by receiver too.
  CountedByReceiver count(const std::string& axis) { return {run, axis, receivers}; }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = MeshParallelOptions;
  static constexpr const char *name = "10_3d_parallel", *title = "Data x tensor x pipeline parallelism on one mesh";

  MeshParallel(Run& r, const Options& o) : run(r), options(o) { mesh_plan.reserve_scratch(tp); }

  /// What this rank updates with its moments, the copy of the token embedding too.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  /// Of that, what no other rank of a replica has; with ZeRO-1 all replicas are one.
  HeldShards owned_shards() { return {plan.table, mesh_plan.counted_of(adamw.shards()), *run.stream}; }
  int replica() const { return mesh_plan.zero ? 0 : dp.rank(); }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round(*run.kernels);
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
      report_receivers(report, axis, receivers[axis], mesh_plan.line(axis));
    report_schedule(report, plan, performed, run, pp);
  }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                              // device, data, ledgers
  const Options& options;                                                // what was asked for
  MeshPlan mesh_plan = plan_of(options, run.session);                    // who has what on the mesh
  const PipelinePlan& plan = mesh_plan.pipeline;                         // and along a line of stages
  Mesh mesh{run.session, axes_of(mesh_plan.layout), run.group_setup()};  // all N ranks, and a line along each axis
  Group &pp = mesh.group("pp"), &dp = mesh.group("dp"), &tp = mesh.group("tp");
  std::unique_ptr<Group> ends = group_of_ends(pp, run.group_setup());  // first and last stage: the token embedding
  Range share = Partition(run.batch.global_batch, dp.ranks()).shard(dp.rank());  // of the global batch
  std::vector<Range> ranges = mesh_plan.ranges();                                // of the table: what this rank has
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {elements_of(ranges)}, "parameters"};
  ShardedAdamW adamw{
      run.memory,       *run.stream, plan.table, mesh_plan.updated(), mesh_plan.updated_of(parameters.tensor()),
      run.options.adamw};  // (P/N) moments
  Pipeline pipeline{pp,      plan.schedule.virtual_stages, run.group_setup(), run.shape.type, plan.rows(),
                    run.time};                        // what joins the stages
  Workspace work{run.memory, run.config, run.shape};  // scratch of all passes
  TensorParallelMessages parts{tp,   run.shape,    run.config.channels,
                               work, *run.kernels, run.time};  // what joins the parts
  std::vector<LocalStage> stages =
      make_local_stages(run, plan, pp.rank(), parameters.tensor(), work);  // of this rank
  DividedStages layers{run, plan, stages, parts};                          // sums and messages between their layers
  std::vector<PerformedAction> performed;                                  // in the last step
  Receivers receivers;                                                     // in the last step
  std::optional<TextOnMesh> generator;                                     // of a sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::MeshParallel>(argc, argv);
}
