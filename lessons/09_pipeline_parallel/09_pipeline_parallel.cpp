// Lesson 09: pipeline parallelism, with the schedule as data
//
// Builds on:    lesson 01 (a single device)
// New idea:     the model is cut into stages, runs of blocks, one or more on each rank. Micro-batches go through
//               the stages forward and backward: a stage sends the residual stream to the next stage, and its
//               gradient to the stage before. The schedule is data: a list of actions for each rank. A generator
//               makes it, a simulation checks it before anything runs, and one loop carries it out (pipeline.hpp).
// Memory:       16 P / p bytes of model state a rank (and 16 V C once more: the last stage has a copy of the token
//               embedding); activations of a stage for each micro-batch in flight: m with gpipe, min(p - rank, m)
//               with 1f1b
// Traffic:      m B T C numbers a boundary and direction, and 2 V C once a step for the tied embedding
// Paper:        Huang et al. 2019 (GPipe); Narayanan et al. 2021 (Megatron-LM), section 2.2
//
// Sample runs:  mpirun -np 2 build/lessons/09_pipeline_parallel --steps=5
//               mpirun -np 4 build/lessons/09_pipeline_parallel --steps=3 --micro-batch=2 --schedule=gpipe
//             * mpirun -np 4 build/lessons/09_pipeline_parallel --device=cuda --steps=20    (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 01, whatever p is; the idle share of the schedule beside its formula.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "lessons/frame/train.hpp"
#include "lessons/parallel/pipeline/pipeline.hpp"
#include "lessons/parallel/pipeline/pipeline_costs.hpp"
#include "lessons/parallel/pipeline/schedule_report.hpp"
#include "lessons/parallel/pipeline/text_pipeline.hpp"
#include "lessons/parallel/pipeline/tied_embedding.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"

namespace rankwise {

/// This rank's stages, and a training step with them. The frame (lessons/frame/train.hpp) does the rest.
class PipelineParallel {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // The global batch passes through the stages in m = G / B micro-batches; each stage accumulates its gradients.
    LossSum loss;
    for (LocalStage& own : stages) own.gradients->clear();
    {
      // NEW: the order of forward and backward passes is data. A 1F1B list begins with p - 1 - rank forward passes
      // (warm-up), continues with one forward and one backward pass alternately (steady state), and ends with the
      // backward passes that remain (cool-down). For each action run() waits for the (R, C) rows it needs, calls
      // perform(), and sends the result, s R C bytes, while the next action is computed.
      const auto counted = run.count("pp");
      performed = pipeline.run(plan.schedule, [&](const Action& action, const auto&... rows) {
        loss += perform(action, step, rows...);
      });
    }
    // NEW: the pipeline flush. After the last backward pass no micro-batch is in flight, and every stage has the
    // gradients of its own parameters; only the tied embedding's are in two places. The last stage has the loss.
    const std::vector<Tensor> gradients = whole_gradients();
    all_reduce_sum(loss, pp);
    return update(step, loss, gradients);
  }

  /// NEW: one action: the forward or backward pass of one micro-batch through one of this rank's stages.
  /// @param received     (R, C) the stream from the stage before, or its gradient from the stage after.
  /// @param send_buffer  (R, C) for the result, which is sent on. Both are empty at the ends of the pipeline.
  LossSum perform(const Action& action, std::int64_t step, const Tensor& received, const Tensor& send_buffer)
  {
    // A rank holds one stage, or with interleaving v of them: r, r + p, r + 2 p, ...
    LossSum loss;
    LocalStage& own = stages[plan.place_of(action)];
    // NEW: a micro-batch is in flight from its forward pass in a stage to the end of its backward pass there. It
    // takes a slot of the stash, which keeps its activations: m slots with GPipe, at most p - rank with 1F1B.
    InFlight& m = own.stash.before(action);
    const Range sequences{action.micro_batch * run.batch.micro_batch, run.batch.micro_batch};
    if (action.kind == ActionKind::forward) {
      // All stages load the micro-batch: the first needs its tokens, the last its targets, all its dropout keys.
      m.batch = run.load(m.kept, sequences, step);
      loss = forward(own, m, received, send_buffer);
    } else {
      // NEW: the stage's gradients are summed over micro-batches, in whichever order the schedule has them.
      const GradientTensors d = own.gradients->begin(sequences);
      backward(own, stage_tensors(plan.table, own.stage, d.flat, d.tied), m, received, send_buffer);
      own.gradients->end(sequences);
    }
    // The last action of the micro-batch in this stage frees its slot.
    own.stash.after(action, true);
    // On the virtual clock the action takes the time of its arithmetic.
    charge(run.messages.clock(), plan, action);
    return loss;
  }

  /// Forward pass of a stage. The last stage returns the loss; what the backward pass needs is kept.
  LossSum forward(const LocalStage& own, const InFlight& m, const Tensor& received, const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch] = m;
    // NEW: only the first stage has the embedding. The others begin with the (R, C) stream from the stage before.
    // Received rows are copied, because the receive buffer is used again for a later micro-batch.
    if (stage.first) {
      model.embedding.lookup(work.output, weights.embedding, batch);
      model.embedding.add(kept.stream(0), work.output, weights.embedding, batch);
    } else {
      run.stream->copy(kept.stream(0), received);
    }
    // NEW: the last branch of the stage writes into the send buffer. Only the last stage has the head and a loss.
    forward_branches(own, 0, model.branches.size(), m, send_buffer);
    return stage.last ? model.head.forward(kept.head, weights.head, batch) : LossSum{};
  }

  /// Adds the gradient of the loss with respect to the stage's parameters to @p gradient.
  void backward(const LocalStage& own, const ModelTensors& gradient, const InFlight& m, const Tensor& received,
                const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch] = m;
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors &p_head = weights.head, &d_head = gradient.head;
    // NEW: only the last stage starts from the loss. The others begin with dx, (R, C), from the stage after them.
    if (stage.last) {
      // The (R, V) logits are replaced by their gradient; then dx begins at zero, with the contribution of the
      // norm.
      model.head.apply_backward(output, d_head, kept.head, p_head, batch);
      run.stream->zero(dx);
      model.head.normalise_backward(dx, d_head, output, kept.head, p_head, batch);
    } else {
      run.stream->copy(dx, received);
    }

    // The branches of this stage, last first, as on a single device.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // With recomputation a micro-batch in flight keeps only the inputs of blocks: (R, C) for each block of the
      // stage, and one block's activations are shared by all micro-batches.
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(own, i - 1, i + 1, m);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors& d = gradient.branches[i];
      // Parameter gradients are added to d, and dx becomes that of the branch's input.
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
    }
    // NEW: dx is now the gradient of the stage's input, which the stage before waits for. It is sent from the
    // buffer while this rank computes its next action.
    if (stage.first)
      model.embedding.backward(gradient.embedding, dx, batch);
    else
      run.stream->copy(send_buffer, dx);
  }

  /// Loss of the whole validation split: a schedule of forward passes only, in which nothing is kept.
  LossSum evaluate()
  {
    LossSum loss = validate(run, pipeline, plan, stages, {}, [&](const auto&... of) { return forward(of...); });
    all_reduce_sum(loss, pp);
    return loss;
  }

  /// The token that follows a text, the same on all ranks. Stages compute it one after the other, and each
  /// broadcasts its output.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    // NEW: the stages run in turn, so all ranks but one wait: with a single text there is nothing to fill a
    // pipeline.
    if (!generator) generator.emplace(run, plan, stages, pp);
    return generator->next_token(text, number);
  }

 private:
  /// Forward pass of branches [first, last) of a stage.
  /// @param send_buffer  (R, C) for the output of the stage, except in the last one. Empty on recomputation: the
  ///                     next stage has that output already.
  void forward_branches(const LocalStage& own, std::size_t first, std::size_t last, const InFlight& m,
                        const Tensor& send_buffer = {})
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch] = m;
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      // NEW: the output of the stage's last branch is computed directly into the send buffer, (R, C). It is not
      // kept here: the next stage keeps it as its input.
      const bool sent_on = i + 1 == model.branches.size() && !stage.last;
      const Tensor& next = sent_on ? send_buffer : kept.stream(i + 1);
      // Normalise the stream, compute, and add the result: nothing is sent inside a stage.
      branch.normalise(kept.branches[i], p);
      branch.apply(work.output, kept.branches[i], p, batch);
      if (!next.empty()) branch.add(next, kept.branches[i], work.output, p, batch);
    }
  }

  /// The gradients of this rank's parameters, range by range.
  std::vector<Tensor> whole_gradients()
  {
    const auto counted = run.count("tied");
    // The total of a stage is (P/p), in ranges: the token embedding, the other parameters, the copy of the
    // embedding.
    std::vector<Tensor> gradients;
    for (LocalStage& own : stages) {
      const Tensor total = own.gradients->total();
      // NEW: the first stage looks tokens up in the token embedding, the last one computes logits with its copy of
      // it. Each has one of the gradient's two terms, and an all-reduce of V C numbers gives both of them the sum.
      const Range token = own.stage.token(plan.table);
      if (ends && !token.empty()) {
        const auto span = run.time.span(Work::exposed, "summing the tied embedding's gradient");
        all_reduce_sum(total.slice(token), *ends);
      }
      for (const Tensor& gradient : cut(total, ranges_of(plan.table, own.stage))) gradients.push_back(gradient);
    }
    return gradients;
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip; each rank updates its stages.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& gradients)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    // NEW: the squares are added up over all stages. The copy of the token embedding is left out, so that each
    // parameter counts once.
    const double norm =
        std::sqrt(squared_norm(run.kernels, without_copy(gradients, stages.back().stage), pp)) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    // Both ends update the token embedding with the same gradient, so it stays the same.
    check_finite(run, step, loss.mean(), norm, adamw.shards(), gradients, pp);
    adamw.step(run.kernels, gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    return {loss.mean(), norm, learning_rate};
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = PipelineParallelOptions;
  static constexpr const char *name = "09_pipeline_parallel",
                              *title = "Pipeline parallelism, with the schedule as data";

  PipelineParallel(Run& r, const Options& o) : run(r), options(o) {}

  /// The parameters of this rank's stages and their moments, with the copy of the token embedding.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  /// The same without that copy, so that each parameter has one owner.
  HeldShards owned_shards() { return {without_copy(adamw.shards(), stages.back().stage), *run.stream}; }
  auto& optimizer() { return adamw; }
  void after_load() { adamw.round(run.kernels); }
  std::string describe() const
  {
    return fmt::format("collectives by {}; {}", describe_algorithm(pp), rankwise::describe(plan));
  }
  void report(Report& report)
  {
    check_tied(report, ranges, adamw.shards(), *run.stream, ends.get());
    report_schedule(report, plan, performed, run, pp);
  }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                            // device, data, ledgers
  const Options& options;                                              // what was asked for
  Group pp{"pp", Communicator::world(), run.group_setup()};            // all p ranks, by stage
  std::unique_ptr<Group> ends = group_of_ends(pp, run.group_setup());  // first and last rank: the tied embedding
  PipelinePlan plan = plan_of(options, pp.ranks());                    // stages of each rank, and the schedule
  std::vector<Range> ranges = ranges_of(plan.table, plan.stages_of(pp.rank()));  // of the table: this rank's stages
  Buffer parameters{
      run.memory, Category::parameters, run.shape.type, {elements_of(ranges)}, "parameters"};  // (P/p)
  ShardedAdamW adamw{run.memory,       *run.stream, plan.table, ranges, cut(parameters.tensor(), ranges),
                     run.options.adamw};  // (P/p) moments
  Pipeline pipeline{pp,      plan.schedule.virtual_stages, run.group_setup(), run.shape.type, plan.rows(),
                    run.time};                        // channels between stages
  Workspace work{run.memory, run.config, run.shape};  // scratch, shared by all micro-batches
  std::vector<LocalStage> stages =
      make_local_stages(run, plan, pp.rank(), parameters.tensor(), work);  // of this rank, with stash and gradients
  std::vector<PerformedAction> performed;                                  // in the last step
  std::optional<TextPipeline> generator;                                   // used by --sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::PipelineParallel>(argc, argv);
}
