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

#include "lessons/16_five_axes/experts_on_mesh.hpp"
#include "lessons/16_five_axes/runs_in_flight.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/context/ring_attention.hpp"
#include "lessons/parallel/mesh/divided_layers.hpp"
#include "lessons/parallel/mesh/five_axes_costs.hpp"
#include "lessons/parallel/mesh/mesh_traffic.hpp"
#include "lessons/parallel/pipeline/schedule_report.hpp"
#include "lessons/parallel/pipeline/text_pipeline.hpp"
#include "lessons/parallel/pipeline/tied_embedding.hpp"
#include "lessons/parallel/tensor/vocabulary_parallel_loss.hpp"
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
      const auto sent_pp = count("pp"), sent_tp = count("tp"), sent_cp = count("cp");
      const auto sent_rows = run.count("experts"), sent_outputs = run.count("outputs");
      performed = pipeline.run(plan.schedule, [&](const Action& action, const auto&... rows) {
        loss += perform(action, step, rows...);
      });
    }
    // After the pipeline flush gradients are summed over the replicas of each parameter, and over both ends of the pipeline.
    const std::vector<Tensor> gradients = whole_gradients();
    // NEW: ranks along cp have other tokens, so their losses add up too. Along tp all ranks have the same loss.
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
    // The ranks along cp and tp, and all stages, have the same sequences: those of their replica.
    const Range sequences{share.first + action.micro_batch * run.batch.micro_batch, run.batch.micro_batch};
    // NEW: a micro-batch in flight has a slot for each run of its tokens. Its forward pass loads them into it.
    std::vector<TokenRun> both = in_flight.before(own, place, action, [&](const TokenRun& mine) {
      return run.load(mine.kept, sequences, step, mine.tokens);
    });
    if (action.kind == ActionKind::forward) {
      loss = forward(own, both, received, send_buffer);
    } else {
      // The gradients of both runs add up; in exact arithmetic in the tree over the tokens of a sequence (lesson 14).
      const GradientTensors d = own.gradients->begin(sequences);
      const auto of_run = of_runs[place].begin(d);
      // The gradients of experts are sums of their own, over the rows that come from all ranks along ep (lesson 15).
      experts.begin(place, sequences);
      // Each run adds to the stage's tensors in a vector, which in exact arithmetic is its own.
      for (std::size_t k = 0; k < both.size(); ++k)
        both[k].gradient = stage_tensors(plan.table, own.stage, of_run[k].flat, of_run[k].tied);
      backward(own, place, both, received, send_buffer);
      // First sum, along tp, of what sequence parallelism divides: gradients of norms and of biases, for each run.
      for (std::size_t k = 0; k < both.size(); ++k) row_gradients[k][place].add_to(of_run[k].flat, tp);
      // NEW: second sum, along cp: for each sequence, or (in fast arithmetic) after the step. Dense parameters and experts
      // each join their own sum over micro-batches.
      of_runs[place].end(d);
      experts.end(place, sequences);
      own.gradients->end(sequences);
    }
    // Attention has charged its pairs of tokens already.
    charge(action);
    // The last action of the micro-batch in this stage frees its slots.
    in_flight.after(own, place, action, true);
    return loss;
  }

  /// Forward pass of a stage. The last stage returns the loss; what the backward pass needs is kept.
  /// @param both  NEW: this rank's two runs of tokens of the micro-batch, R = B T / (2 c) rows each.
  LossSum forward(const LocalStage& own, std::vector<TokenRun>& both, const Tensor& received,
                  const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    for (std::size_t k = 0; k < both.size(); ++k) {
      const TokenRun& mine = both[k];
      // The first stage looks up the run's tokens among V / tp vocabulary entries; operator g of lesson 08 makes the rows
      // whole. The others begin with the stream from the stage before.
      if (stage.first) {
        model.embedding.lookup(mine.work.output, weights.embedding, mine.batch);
        model.embedding.add(mine.kept.stream(0), operators[k].sum(mine.work.output), weights.embedding,
                            rows_of(mine));
      } else {
        run.stream->copy(mine.kept.stream(0), half(received, k));
      }
    }
    // Except in the last stage, the last branch writes into the send buffer, (2, R, C) or (2, R / tp, C).
    forward_branches(own, 0, model.branches.size(), both, send_buffer);
    // A row's loss needs no other row, so the last stage computes each run alone, over a divided vocabulary as in lesson 10.
    LossSum loss;
    for (std::size_t k = 0; stage.last && k < both.size(); ++k)
      loss += vocabulary_parallel_loss(model.head, weights.head, both[k].kept.head, both[k].batch, operators[k]);
    return loss;
  }

  /// Adds the gradient of the loss with respect to the stage's parameters to the gradients of each run. Gradients of
  /// experts have sums of their own, and gradients that are sums over only this rank's rows go to row_gradients.
  /// @param place  number of the stage on this rank.
  void backward(const LocalStage& own, std::size_t place, std::vector<TokenRun>& both, const Tensor& received,
                const Tensor& send_buffer)
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    for (std::size_t k = 0; k < both.size(); ++k) {
      const auto& [tokens, scratch, kept, batch, gradient, doutput] = both[k];
      // The last stage starts from the loss of each run; the others begin with dx from the stage after them.
      if (!stage.last) {
        run.stream->copy(scratch.dstream, half(received, k));
        continue;
      }
      // Operator f: each rank's columns give a partial sum of the gradient in front of them, summed along tp.
      model.head.apply_backward(scratch.output, gradient.head, operators[k].regathered(kept.head), weights.head,
                                batch);
      const Tensor dhead = operators[k].sum(scratch.output);
      run.stream->zero(scratch.dstream);
      row_gradients[k][place].normalise_backward(model.head, scratch.dstream, gradient.head, dhead, kept.head,
                                                 weights.head, rows_of(both[k]));
    }
    // The branches of this stage, last first. Recomputation runs a block's forward pass again: its keys and values travel
    // along cp again, and its sums along tp are made again.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(own, i - 1, i + 1, both);
      backward_branch(own, place, i, both);
    }
    // dx of each run is now the gradient of the stage's input, (R, C) or (R / tp, C). The embedding ended with g, so the
    // first stage gathers all rows; the others send theirs to the stage before, which waits for both runs.
    for (std::size_t k = 0; k < both.size(); ++k) {
      const TokenRun& mine = both[k];
      if (stage.first)
        model.embedding.backward(mine.gradient.embedding, operators[k].gather(mine.work.dstream, mine.work.output),
                                 mine.batch);
      else
        run.stream->copy(half(send_buffer, k), mine.work.dstream);
    }
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
        in_flight.forward_only(pipeline, stages, passes, load, [&](auto&... of) { return forward(of...); });
    for (Group* axis : {&cp, &ep, &dp, &pp}) all_reduce_sum(loss, *axis);
    return loss;
  }

  /// The token that follows a text, the same on all ranks, from a forward pass over its last T tokens. A causal model ignores
  /// the padding after them.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    const std::int64_t last = std::min(std::ssize(text), run.batch.sequence) - 1;
    // The one rank along cp that has the text's last token in one of its runs draws the next one, in the last stage.
    std::int64_t token = 0;  // where the last stage has the last token; zero on all other ranks
    // All replicas read the same text: they need each other's experts for its rows.
    const auto load = [&](const TokenRun& mine, std::int64_t) {
      return run.load_text(mine.kept, text, run.batch.micro_batch, mine.tokens);
    };
    in_flight.forward_only(pipeline, stages, 1, load, [&](const LocalStage& own, auto& both, auto&... rows) {
      const LossSum none = forward(own, both, rows...);
      for (const TokenRun& mine : both)
        if (own.stage.last && mine.tokens.contains(last))
          token = pick_token(logits_of(mine.kept.head, last - mine.tokens.first), run.options.sampling, number);
      return none;
    });
    // Replicas, and ranks along tp, have drawn the same one.
    for (Group* axis : {&cp, &pp}) all_reduce_sum(token, *axis);
    return static_cast<Token>(token);
  }

 private:
  /// Forward pass of branches [first, last) of a stage. NEW: each axis does what it does alone, in this order:
  ///
  ///     norm           rows of this rank            T / (2 c tp) tokens with sequence parallelism
  ///     f              all-gather along tp          all tokens of the run
  ///     q, k, v        columns of this rank         H / tp heads
  ///     attention      ring along cp                all keys, for these heads
  ///     experts        choices along cp, all-to-all along ep, sums of their parts along tp
  ///     projection     rows of this rank, g         sum along tp, or reduce-scatter
  ///     residual       rows of this rank
  ///
  /// @param send_buffer  for the output of the stage, except in the last one. Empty on recomputation.
  void forward_branches(const LocalStage& own, std::size_t first, std::size_t last, std::vector<TokenRun>& both,
                        const Tensor& send_buffer = {})
  {
    const auto& [stage, model, weights, gradients, stash] = own;
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      // Each run of tokens alone: the norm, operator f of lesson 08, and the layers that work row by row.
      std::vector<BranchActivations> whole;  // with the normalised rows of all tp ranks
      for (std::size_t k = 0; k < both.size(); ++k) {
        const BranchActivations& a = both[k].kept.branches[i];
        // With sequence parallelism (R / tp, C) rows are normalised, and all R are gathered.
        branch.normalise(operators[k].own(a), p);
        whole.push_back(operators[k].gathered(a));
        // This rank's columns: q, k and v of H / tp heads, or 4 C / tp hidden channels of an MLP.
        if (branch.attention())
          branch.query_key_value(whole[k], p, both[k].batch);
        else if (!branch.experts())
          branch.apply(both[k].work.output, whole[k], p, both[k].batch);
      }
      // NEW: where tokens of other ranks are needed: along cp attention meets all keys, with this rank's heads; along ep
      // rows meet the experts that the router has chosen, after ranks along cp have told each other its choices.
      if (branch.attention()) attention.forward(branch, i, both);
      if (branch.experts()) experts.forward(branch, p, both, whole);
      // Each run alone again: operator g, and the residual connection. Experts have been summed along tp already. The
      // output of the stage's last branch is computed directly into the send buffer.
      const bool sent_on = i + 1 == model.branches.size() && !stage.last;
      for (std::size_t k = 0; k < both.size(); ++k) {
        const TokenRun& mine = both[k];
        const BranchActivations& a = mine.kept.branches[i];
        // This rank's rows of the matrix give a partial sum of the output, (R, C).
        if (branch.attention()) branch.project(mine.work.output, a, p, mine.batch);
        const Tensor sum =
            branch.experts() ? operators[k].own_of(mine.work.output) : operators[k].sum(mine.work.output);
        const Tensor next = sent_on ? half(send_buffer, k) : mine.kept.stream(i + 1);
        if (!next.empty()) branch.add(next, a, sum, p, rows_of(mine));
      }
    }
  }

  /// Backward pass of branch @p i of a stage: the same three parts, last first.
  void backward_branch(const LocalStage& own, std::size_t place, std::size_t i, std::vector<TokenRun>& both)
  {
    const Branch& branch = own.model.branches[i];
    const BranchTensors& p = own.weights.branches[i];
    // Each run alone: the residual connection hands dx on, and g in the backward pass gives every tp rank all rows of it,
    // (R, C). Experts have no bias behind their sum, so here nothing is added to row_gradients.
    for (std::size_t k = 0; k < both.size(); ++k) {
      TokenRun& mine = both[k];
      const Tensor &dx = mine.work.dstream, &output = mine.work.output;
      // The gradient of the branch's output, (R / tp, C) with sequence parallelism: dx, or with dropout what the mask leaves.
      const Tensor scratch = output.slice({0, dx.elements()}).reshaped(dx.shape());
      const Tensor doutput = branch.experts() ? branch.output_backward(dx, scratch, rows_of(mine))
                                              : row_gradients[k][place].add_backward(
                                                    branch, mine.gradient.branches[i], dx, output, rows_of(mine));
      // (R, C): all rows, in front of this rank's part of the matrices.
      mine.doutput = operators[k].gather(doutput, output);
      if (branch.attention()) branch.hidden_backward(mine.dhidden(), mine.doutput, p, mine.batch);
    }
    // NEW: the gradients of this rank's keys come from the queries of all ranks along cp (lesson 14).
    if (branch.attention()) attention.backward(branch, i, both);
    // Each run alone again: matrices, or experts, whose rows travel along ep once more; then f in the backward pass, which
    // sums dnormalised along tp (experts have done so), and the norm of this rank's rows.
    for (std::size_t k = 0; k < both.size(); ++k) {
      const TokenRun& mine = both[k];
      const Tensor& output = mine.work.output;
      const BranchTensors& d = mine.gradient.branches[i];
      const BranchActivations &a = mine.kept.branches[i], whole = operators[k].regathered(a);
      // The stage's matrices add to the gradients of the run. What is left in output is the gradient of the normalised rows.
      if (branch.attention()) {
        branch.weights_backward(d, mine.doutput, mine.dinner(), whole, mine.batch);
        branch.normalised_backward(output, mine.dinner(), p, mine.batch);
      } else if (branch.experts()) {
        experts.backward(place, branch, p, d.router, mine, k, whole);
      } else {
        branch.apply_backward(output, d, mine.doutput, mine.work.wide, whole, p, mine.batch);
      }
      // A partial sum, (R, C), becomes that of this rank's rows.
      const Tensor dnormalised = branch.experts() ? operators[k].own_of(output) : operators[k].sum(output);
      row_gradients[k][place].normalise_backward(branch, mine.work.dstream, d, dnormalised, a, p, rows_of(mine));
    }
  }

  /// The gradients of the parameters that this rank updates, range by range: of its stages, then of their experts.
  std::vector<Tensor> whole_gradients()
  {
    const auto sent_tied = count("tied"), sent_dp = count("dp"), sent_ep = count("ep"), sent_cp = count("cp");
    // Nothing hides these sums: the pipeline is empty.
    const auto span = run.time.span(Work::exposed, "summing gradients");
    std::vector<Tensor> sums, of_experts;
    for (std::size_t place = 0; place < stages.size(); ++place) {
      // The dense parameters of a stage, range by range, as they are sharded. Their sum over micro-batches is complete.
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
    // The last sum, over both ends of the pipeline, as in lesson 10: of the token embedding's shard that this rank updates.
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
    const auto sent_dp = count("dp"), sent_ep = count("ep"), sent_cp = count("cp");
    // Exposed as well: the next step begins when all parameters are whole.
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    // Dense ranges and experts have other axes of replicas, so each range travels by itself.
    const std::vector<Tensor> all = cut(parameters.tensor(), ranges);
    for (std::size_t i = 0; i < all.size(); ++i) exchange(Way::back, all[i], ranges[i]);
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip; each rank updates its shard of its stages.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& gradients)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    // Every parameter of the model counts once (mesh_plan.hpp). NEW: experts on each rank along ep, and with ZeRO-1 each
    // shard on the replica that updates it, along dp and cp.
    decltype(LossSum::nats) squares;
    for (const Tensor& counted : mesh_plan.counted_of(gradients)) squares += run.kernels->squared_norm(counted);
    // Ranks along these axes count other parameters in any case; along dp and cp they do so with ZeRO-1 only.
    for (Group* axis : {&tp, &pp, &ep}) all_reduce_sum(squares, *axis);
    for (Group* axis : {&dp, &cp})
      if (mesh_plan.zero) all_reduce_sum(squares, *axis);
    // BEGIN TWIN 04.3
    // The mean is over the tokens of the whole global batch, whichever rank computed them.
    const double norm = std::sqrt(squares.value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(run, step, loss.mean(), norm, adamw.shards(), gradients, mesh.world());
    // A rank updates its shards, with ZeRO-1 1 / (dp c) of its stages' parameters; then replicas exchange them.
    adamw.step(run.kernels, gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    return {loss.mean(), norm, learning_rate};
    // END TWIN
  }

  /// The logits of row @p row of the last stage, from the shards of all tp ranks.
  std::vector<float> logits_of(const HeadActivations& head, std::int64_t row)
  {
    const std::int64_t stored = run.config.stored_vocabulary(tp.ranks());
    return gather_logits(run, head.logits.slice({row * stored, stored}), tp);
  }
  /// What a tensor of both runs, (2, R, C), has of run @p k; empty if there is none.
  static Tensor half(const Tensor& both, std::size_t k)
  {
    if (both.empty()) return {};
    const std::int64_t C = both.extent(1), count = both.elements() / 2;
    return both.slice({static_cast<std::int64_t>(k) * count, count}).reshaped({count / C, C});
  }
  /// The rows of a run that this rank has between the divided layers.
  MicroBatch rows_of(const TokenRun& mine) const { return tokens_of(mine.batch, run.shape.tokens); }
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
    for (const Workspace& scratch : work)
      operators.emplace_back(tp, run.shape, run.config.channels, scratch, run.kernels, run.time);
    for (LocalStage& own : stages) {
      of_runs.emplace_back(run, gradient_layout(plan.table, own.stage, options.gradients), options.order, cp);
      // An expert adds its own bias; the branch adds none.
      for (std::size_t i = 0; i < own.model.branches.size(); ++i)
        if (own.model.branches[i].experts()) own.weights.branches[i].out_bias = work[0].experts.no_bias;
    }
    if (axes_plan.has_experts()) run.stream->zero(work[0].experts.no_bias);
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
    const auto& [layout, cp_ranks, ep_ranks] = axes_plan.degrees;
    return fmt::format("{}; collectives by {}; {}{}", rankwise::describe(layout, cp_ranks, ep_ranks),
                       describe_algorithm(mesh.world()), rankwise::describe(plan),
                       options.mesh.show_groups ? "\n" + mesh.table() : "");
  }
  void report(Report& report)
  {
    check_tied(report, ranges, adamw.shards(), *run.stream, ends.get());
    for (const char* axis : {"tp", "cp", "pp", "tied", "ep", "dp"})
      check_receivers(report, axis, run.receivers[axis], mesh_plan.line(axis));
    experts.report(report);
    report_schedule(report, plan, performed, in_flight.times(), run, pp);
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
                    run.time};  // channels between stages
  RunWorkspaces work{Workspace(run.memory, run.config, run.shape),
                     Workspace(run.memory, run.config, run.shape)};  // scratch of each run of tokens
  std::vector<LocalStage> stages =
      make_local_stages(run, plan, pp.rank(), parameters.tensor(), work[0]);  // of this rank
  RunsInFlight in_flight{run, axes_plan, stages, work};                       // activations of both runs
  std::vector<ContextGradients> of_runs;  // of each stage: gradients of both runs
  ExpertsOnMesh experts{run, axes_plan, stages, experts_of_all(), ep, cp, tp};  // of this rank's stages
  RingAttention attention{run, axes_plan.ring.runs, cp};  // queries here, keys of all ranks along cp
  std::vector<TensorParallelMessages> operators;          // of each run: f and g
  std::array<std::vector<RowGradients>, TokenRuns::of_a_rank> row_gradients{
      make_row_gradients(run, stages), make_row_gradients(run, stages)};  // of each run and stage: sums over rows
  std::vector<PerformedAction> performed;                                 // in the last step

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
