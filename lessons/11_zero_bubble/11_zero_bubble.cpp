// Lesson 11: zero bubble, a backward pass in two halves
//
// Builds on:    lesson 09 (pipeline parallelism)
// New idea:     the backward pass of a stage has two halves: B, the gradient of the stage's input, and W, the gradients
//               of its weights. The stage before waits for B, but no rank waits for W. So each rank runs B as early as
//               it can, and defers W to fill the time in which it is idle with 1F1B.
// Memory:       model state of lesson 09; p micro-batches in flight on every rank, and with each the gradients that W
//               needs: 9 C numbers a row and block, beside 16 C activations
// Traffic:      that of lesson 09
// Paper:        Qi et al. 2024 (Zero Bubble Pipeline Parallelism), sections 1 and 2
//
// Sample runs:  mpirun -np 4 build/lessons/11_zero_bubble --steps=3 --micro-batch=2 --link=5us,10GB/s
//               mpirun -np 2 build/lessons/11_zero_bubble --steps=3 --arithmetic=exact --recompute=block --partition=3,1
//             * mpirun -np 4 build/lessons/11_zero_bubble --device=cuda --steps=20    (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 01, and a smaller idle share than lesson 09 with --schedule=1f1b.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "lessons/11_zero_bubble/costs.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/pipeline/pipeline.hpp"
#include "lessons/parallel/pipeline/schedule_report.hpp"
#include "lessons/parallel/pipeline/text_pipeline.hpp"
#include "lessons/parallel/pipeline/tied_embedding.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"

namespace rankwise {

/// This rank's stage, and a training step with it. The frame (lessons/frame/train.hpp) does the rest.
class ZeroBubble {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // The global batch passes through the stages in m = G / B micro-batches; each stage accumulates its gradients.
    LossSum loss;
    for (LocalStage& own : stages) own.gradients->clear();
    {
      // NEW: the list of rank r has three kinds of actions. Warm-up: p - 1 - r forward passes F, as in 1F1B. Steady
      // state: F, then B, whose result the stage before waits for, then W of the micro-batch r before this one.
      // Cool-down: the rest of B, and the r deferred W. There rank r is idle in 1F1B, while gradients pass through
      // the stages before it.
      const auto counted = run.count("pp");
      performed = pipeline.run(plan.schedule, [&](const Action& action, const auto&... rows) {
        loss += perform(action, step, rows...);
      });
    }
    // The pipeline flush: no micro-batch is in flight, and no W is left. The last stage has the loss.
    const std::vector<Tensor> gradients = whole_gradients();
    all_reduce_sum(loss, pp);
    return update(step, loss, gradients);
  }

  /// One action: F, B or W of one micro-batch in this rank's stage.
  /// @param received     (R, C) the stream from the stage before, or its gradient from the stage after.
  /// @param send_buffer  (R, C) for the result, which is sent on. Both are empty at the ends of the pipeline; W
  ///                     neither receives nor sends.
  LossSum perform(const Action& action, std::int64_t step, const Tensor& received, const Tensor& send_buffer)
  {
    LossSum loss;
    LocalStage& own = stages[plan.place_of(action)];
    // NEW: a micro-batch is in flight from F to W. It keeps its slot of the stash past B, so every rank has p slots,
    // as many as the first rank of 1F1B.
    InFlight& m = own.stash.before(action);
    const Range sequences{action.micro_batch * run.batch.micro_batch, run.batch.micro_batch};
    if (action.kind == ActionKind::forward) {
      // All stages load the micro-batch: the first needs its tokens, the last its targets, all its dropout keys.
      m.batch = run.load(m.kept, sequences, step);
      loss = forward(own, m, received, send_buffer);
    } else if (action.kind == ActionKind::backward_input) {
      // NEW: B runs as soon as its input is there, and its result is sent at once.
      backward_input(own, m, received, send_buffer);
    } else {
      // NEW: only W adds to the stage's gradients. Their sum over micro-batches does not depend on the delay.
      const GradientTensors d = own.gradients->begin(sequences);
      backward_weights(own, stage_tensors(plan.table, own.stage, d.flat, d.tied), m);
      own.gradients->end(sequences);
    }
    // W is the last action of the micro-batch in this stage, and frees its slot.
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
    // The first stage has the embedding; the others begin with the (R, C) stream from the stage before.
    if (stage.first) {
      model.embedding.lookup(work.output, weights.embedding, batch);
      model.embedding.add(kept.stream(0), work.output, weights.embedding, batch);
    } else {
      run.stream->copy(kept.stream(0), received);
    }
    // The last branch of the stage writes into the send buffer. Only the last stage has the head and a loss.
    forward_branches(own, 0, model.branches.size(), m, send_buffer);
    return stage.last ? model.head.forward(kept.head, weights.head, batch) : LossSum{};
  }

  /// NEW: B, the gradient of the stage's input. For each product Y = X A of the stage it computes dX = dY A', which
  /// does not need the gradient of A; it keeps dY for W.
  void backward_input(const LocalStage& own, const InFlight& m, const Tensor& received, const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch] = m;
    const Deferred& deferred = kept.deferred;
    const Tensor &dx = work.dstream, &output = work.output;
    // The last stage starts from the loss; the others begin with dx, (R, C), from the stage after them.
    if (stage.last) {
      // The (R, V) logits are replaced by their gradient, and that is the dY of the head. The norm's gradients are
      // sums over rows that B reads anyway: computed here, (C) each, and added in W.
      model.head.logits_backward(output, kept.head, weights.head, batch);
      for (const Tensor& zero : {dx, deferred.norm_weight, deferred.norm_bias}) run.stream->zero(zero);
      model.head.normalise_backward(dx, {deferred.norm_weight, deferred.norm_bias, {}}, output, kept.head,
                                    weights.head, batch);
    } else {
      run.stream->copy(dx, received);
    }

    // The branches of this stage, last first.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // With recomputation a micro-batch in flight keeps only the inputs of blocks: (R, C) for each block of the
      // stage, and one block's activations are shared by all micro-batches.
      if (run.shape.recompute && i % 2 == 1) forward_branches(own, i - 1, i + 1, m);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchActivations& a = kept.branches[i];
      const auto& [doutput, dinner, norm_weight, norm_bias] = deferred.branches[i];
      // NEW: a branch has two products. Their dY are doutput, (R, C), a copy because dx changes below; and dinner,
      // (R, 3 C) in attention and (R, 4 C) in the MLP.
      run.stream->copy(doutput, branch.output_backward(dx, output, batch));
      branch.inner_backward(dinner, work.wide.slice({0, a.hidden.elements()}), doutput, a, p, batch);
      branch.normalised_backward(output, dinner, p, batch);
      for (const Tensor& zero : {norm_weight, norm_bias}) run.stream->zero(zero);
      branch.normalise_backward(dx, {norm_weight, norm_bias, {}, {}, {}, {}}, output, a, p, batch);
    }
    // The stage before waits for dx; the first stage keeps it for the embedding's gradient.
    run.stream->copy(stage.first ? deferred.stream : send_buffer, dx);
  }

  /// NEW: W, the gradients of the stage's weights, added to @p gradient. For each product it computes dA = X' dY from
  /// X, which F kept, and dY, which B kept.
  void backward_weights(const LocalStage& own, const ModelTensors& gradient, const InFlight& m)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    const auto& [kept, batch] = m;
    if (stage.last) {
      model.head.weights_backward(gradient.head, kept.head, batch);
      run.kernels->add(gradient.head.norm_weight, kept.deferred.norm_weight);
      run.kernels->add(gradient.head.norm_bias, kept.deferred.norm_bias);
    }
    // No branch needs the result of another, so their order does not matter here.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // With recomputation X is computed again, as it was for B.
      if (run.shape.recompute && i % 2 == 1) forward_branches(own, i - 1, i + 1, m);
      const BranchTensors& d = gradient.branches[i];
      const auto& [doutput, dinner, norm_weight, norm_bias] = kept.deferred.branches[i];
      model.branches[i].out_bias_backward(d, doutput, batch);
      model.branches[i].weights_backward(d, doutput, dinner, kept.branches[i], batch);
      run.kernels->add(d.norm_weight, norm_weight);
      run.kernels->add(d.norm_bias, norm_bias);
    }
    if (stage.first) model.embedding.backward(gradient.embedding, kept.deferred.stream, batch);
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
      // The output of the stage's last branch is computed directly into the send buffer, (R, C).
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
    // The total of the stage is (P/p). Both ends of the pipeline have one of the two terms of the tied embedding's
    // gradient, and an all-reduce of V C numbers gives both of them the sum.
    const Tensor total = stages.front().gradients->total();
    const Range token = stages.front().stage.token(plan.table);
    if (ends && !token.empty()) {
      const auto span = run.time.span(Work::exposed, "summing the tied embedding's gradient");
      all_reduce_sum(total.slice(token), *ends);
    }
    return cut(total, ranges);
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip; each rank updates its stage.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& gradients)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    // The squares are added up over all stages, without those of the copy of the token embedding.
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

  using Options = ZeroBubbleOptions;
  static constexpr const char *name = "11_zero_bubble", *title = "Zero bubble, a backward pass in two halves";

  ZeroBubble(Run& r, const Options& o) : run(r), options(o) {}

  /// The parameters of this rank's stage and their moments, with the copy of the token embedding.
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
  PipelinePlan plan = plan_of(options, pp.ranks());                    // stage of each rank, and ZB-H1
  std::vector<Range> ranges = ranges_of(plan.table, plan.stages_of(pp.rank()));  // of the table: this rank's stage
  Buffer parameters{
      run.memory, Category::parameters, run.shape.type, {elements_of(ranges)}, "parameters"};  // (P/p)
  ShardedAdamW adamw{run.memory,       *run.stream, plan.table, ranges, cut(parameters.tensor(), ranges),
                     run.options.adamw};  // (P/p) moments
  Pipeline pipeline{pp,      plan.schedule.virtual_stages, run.group_setup(), run.shape.type, plan.rows(),
                    run.time};                        // channels between stages
  Workspace work{run.memory, run.config, run.shape};  // scratch, shared by all micro-batches
  std::vector<LocalStage> stages = make_local_stages(run, plan, pp.rank(), parameters.tensor(),
                                                     work);  // the one of this rank, with stash and gradients
  std::vector<PerformedAction> performed;                    // in the last step
  std::optional<TextPipeline> generator;                     // used by --sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::ZeroBubble>(argc, argv);
}
