// Lesson 14: Context parallelism (long sequences)
//
// Builds on:    lesson 03 (DDP) and lesson 02 (rings and all-to-all)
// New idea:     c ranks divide the tokens of each sequence. All layers but one compute row by row, as before. In
//               attention a query meets the keys of all ranks: keys and values travel round a ring while each rank's
//               queries meet those that are there (ring attention), or ranks exchange tokens for heads (all-to-all).
//               A causal mask hides later keys, so each rank has a run of early and one of late tokens (zig-zag).
// Memory:       16 P bytes of model state on every rank, as in lesson 03; activations of B T / c rows, and two blocks of
//               keys and values. No rank has anything of T x T
// Traffic:      cp, ring: 2 (c - 1) blocks of s 2 B T C / c bytes per layer and micro-batch, and c blocks of their f32
//               gradients; all-to-all: s 8 B T C (c-1)/c^2; world: 8 P (N-1)/N bytes of gradients, as in lesson 03
// Paper:        Liu et al. 2023 (ring attention); Jacobs et al. 2023 (DeepSpeed-Ulysses); Brandon et al. 2023 (striped
//               attention)
//
// Sample runs:  mpirun -np 4 build/lessons/14_context_parallel --steps=3 --arithmetic=exact --dropout=0.1
//               mpirun -np 4 build/lessons/14_context_parallel --steps=5 --attention=all-to-all --compare=5
//               mpirun -np 4 build/lessons/14_context_parallel --steps=3 --cp=2 --order=contiguous
//             * mpirun -np 4 build/lessons/14_context_parallel --device=cuda --steps=20   (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 01, whatever --cp is; 1/c of its activations.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/messages/mesh.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/generate.hpp"
#include "lessons/14_context_parallel/costs.hpp"
#include "lessons/14_context_parallel/head_exchange.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/context/context_gradients.hpp"
#include "lessons/parallel/context/ring_attention.hpp"

namespace rankwise {

/// A training step of one rank, which has a replica of the model and two runs of the tokens of each sequence. The frame
/// (lessons/frame/train.hpp) does everything outside of a step.
class ContextParallel {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Losses and gradients are sums over this rank's tokens; update() divides them once by the number of all tokens.
    LossSum loss;
    gradients->clear();
    {
      // Messages are counted by axis: of a sequence along cp; of gradients along dp, or among all ranks.
      const auto sent_cp = run.count("cp"), sent_dp = run.count("dp"), sent_world = run.count("world");
      // NEW: a group of c ranks computes G / dp sequences together; each rank has two runs of tokens of every one.
      for (std::int64_t first = share.first; first < share.end(); first += run.batch.micro_batch) {
        const Range sequences{first, run.batch.micro_batch};
        // The ranks of a group read the same sequences, and each takes the tokens of its own runs, with their positions.
        for (TokenRun& mine : own) mine.batch = run.load(mine.kept, sequences, step, mine.tokens);
        const GradientTensors d = gradients->begin(sequences);
        // The loss is that of this rank's tokens. Activations of both runs are kept for the backward pass.
        loss += forward();
        // The gradients of both runs add up; in exact arithmetic in the tree over the tokens of a sequence, where each run
        // has a sum of its own first.
        const auto of_run = of_runs.begin(d);
        for (std::size_t k = 0; k < own.size(); ++k) own[k].gradient = model_tensors(table, of_run[k]);
        backward();
        // In exact arithmetic the ranks of the group now sum the gradients of the sequence. Then the micro-batch joins the
        // sum over the step.
        of_runs.end(d);
        gradients->end(sequences);
      }
      // Every rank has all parameters. NEW: ranks that share a sequence add up gradients just as replicas do. (In exact
      // arithmetic the ranks of a group have done so for each sequence, and only replicas are left.)
      const auto span = run.time.span(Work::exposed, "summing gradients");
      for (const PartialSum& sum : gradients->sums()) all_reduce_sum(sum.whole(), of_sums);
    }
    // Each token is on one rank, so the loss of the step is the sum over all ranks.
    all_reduce_sum(loss, world);
    return update(step, loss, gradients->total());
  }

  /// Loss of a micro-batch over this rank's tokens; what the backward pass needs is kept. All ranks of a group call it
  /// together. NEW: a rank has two runs of each sequence, R = B T / (2 c) rows each, and computes one after the other.
  LossSum forward()
  {
    // The embeddings, (R, C): that of a token depends on its position in the sequence, which its run knows.
    for (TokenRun& mine : own) {
      model.embedding.lookup(mine.work.output, weights.embedding, mine.batch);
      model.embedding.add(mine.kept.stream(0), mine.work.output, weights.embedding, mine.batch);
    }
    // Attention and MLP in turn, 2 L branches. Each adds its output to the residual stream of its run.
    forward_branches(0, model.branches.size());
    // A row's loss needs no other row: the head computes each run alone, with (R, V) logits.
    LossSum loss;
    for (TokenRun& mine : own) {
      loss += model.head.forward(mine.kept.head, weights.head, mine.batch);
      run.charge_forward(head_unit);
    }
    // A sum over the rank's tokens that have a target; its division comes last.
    return loss;
  }

  /// Adds the gradient of that loss to the gradients of both runs. Keys and values travel again, and so do their gradients.
  void backward()
  {
    // From the loss of each run to the gradient of its residual stream, dx, (R, C), which starts from zero.
    for (TokenRun& mine : own) {
      // The gradient of the logits, (R, V), gives that of the head's matrix and that of the normalised rows, (R, C).
      const Tensor &dx = mine.work.dstream, &dnormalised = mine.work.output;
      model.head.apply_backward(dnormalised, mine.gradient.head, mine.kept.head, weights.head, mine.batch);
      // The last norm's backward pass adds it to dx.
      run.stream->zero(dx);
      model.head.normalise_backward(dx, mine.gradient.head, dnormalised, mine.kept.head, weights.head, mine.batch);
      run.charge_backward(head_unit);
    }
    // The branches, last first. Each adds its contribution to dx of both runs, and to the gradients of each run.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // Recomputation: a block's forward pass runs again, and its keys and values travel again.
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1);
      backward_branch(i);
    }
    // dx is now the gradient of the embeddings: the row of each token, and that of its position, get theirs. Ranks of a group
    // have other positions, so each adds to other rows of the position table.
    for (TokenRun& mine : own) model.embedding.backward(mine.gradient.embedding, mine.work.dstream, mine.batch);
  }

  /// Loss of the whole validation split. Group g of dp computes micro-batches g, g + dp, g + 2 dp, ...
  LossSum evaluate()
  {
    // The ranks of a group read the same windows, each the tokens of its runs, and meet in attention as in a step.
    LossSum loss = run.validate({replicas.rank(), replicas.ranks()}, [&](Range windows) {
      for (TokenRun& mine : own) mine.batch = run.load_validation(mine.kept, windows, mine.tokens);
      return forward();
    });
    // Tokens that are beyond the end of the split count nothing.
    all_reduce_sum(loss, world);
    return loss;
  }

  /// The next token of a text, computed by all ranks alike: each has all parameters, and all tokens of the text.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run.memory, *run.stream, model, weights, run.batch.sequence);
    return pick_token(generator->next_logits(text), run.options.sampling, number);
  }

 private:
  /// Forward pass of branches [first, last): each run alone, attention with the other ranks, each run alone again. An MLP
  /// needs no other row, so its three parts send nothing.
  void forward_branches(std::size_t first, std::size_t last)
  {
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      // The norm, and q, k and v, (R, 3 C), of this rank's rows alone. An MLP waits for the third part.
      for (TokenRun& mine : own) {
        branch.normalise(mine.kept.branches[i], p);
        if (branch.attention()) branch.query_key_value(mine.kept.branches[i], p, mine.batch);
      }
      // NEW: the only place where tokens meet: the queries of this rank and the keys of all ranks. A ring sends c - 1 blocks
      // of 2 B T C / c keys and values to the next rank; an all-to-all turns rows into heads, and back.
      if (branch.attention()) attention->forward(branch, i, own);
      // Row by row again: attention's output, (R, C), from all heads of a token, or the whole MLP; then the residual
      // connection.
      for (TokenRun& mine : own) {
        const BranchActivations& a = mine.kept.branches[i];
        if (branch.attention())
          branch.project(mine.work.output, a, p, mine.batch);
        else
          branch.apply(mine.work.output, a, p, mine.batch);
        branch.add(mine.kept.stream(i + 1), a, mine.work.output, p, mine.batch);
        // On the virtual clock: the matrices of this run. Attention has charged its pairs of tokens.
        charge(branch, 1);
      }
    }
  }

  /// Backward pass of branch @p i: the same three parts, last first.
  void backward_branch(std::size_t i)
  {
    const Branch& branch = model.branches[i];
    const BranchTensors& p = weights.branches[i];
    // The residual connection hands dx on; in attention the output's matrix gives the gradient of the heads, (R, C).
    for (TokenRun& mine : own) {
      mine.doutput =
          branch.add_backward(mine.gradient.branches[i], mine.work.dstream, mine.work.output, mine.batch);
      if (branch.attention()) branch.hidden_backward(mine.dhidden(), mine.doutput, p, mine.batch);
    }
    // NEW: a query gives a gradient to every key that it sees, so the gradients of keys come from all ranks. In a ring they
    // travel with their block, c hops, and are home when all queries have met it.
    if (branch.attention()) attention->backward(branch, i, own);
    // Row by row again: each run adds to gradients of its own, and leaves the gradient of its normalised rows, (R, C).
    for (TokenRun& mine : own) {
      const BranchActivations& a = mine.kept.branches[i];
      const BranchTensors& d = mine.gradient.branches[i];
      // From the gradients of q, k and v, (R, 3 C), to those of the matrices, or through the MLP at once.
      if (branch.attention()) {
        branch.weights_backward(d, mine.doutput, mine.dinner(), a, mine.batch);
        branch.normalised_backward(mine.work.output, mine.dinner(), p, mine.batch);
      } else {
        branch.apply_backward(mine.work.output, d, mine.doutput, mine.work.wide, a, p, mine.batch);
      }
      // The norm adds the branch's contribution to dx.
      branch.normalise_backward(mine.work.dstream, d, mine.work.output, a, p, mine.batch);
      charge(branch, 2);
    }
  }

  /// Advances the virtual clock by a branch without pairs of tokens, which attention charges itself.
  void charge(const Branch& branch, std::int64_t passes)
  {
    run.charge_flops(passes * std::llround(unit_flops(run.config, branch.unit(), run.shape.rows(), 0)), "branch");
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const LossSum& loss, const Tensor& gradient)
  {
    // All ranks have the same sums by now, so they make the same update of their replicas, and no norm has to be summed.
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    // The mean is over the tokens of the whole global batch, whichever rank has them.
    const double norm = std::sqrt(run.kernels->squared_norm(gradient).value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(step, loss.mean(), norm, run.kernels, table, gradient, master);
    // All P parameters, on every rank: nothing is left to send.
    adamw.step(run.kernels, parameters.tensor(), gradient, learning_rate,
               clip_factor(norm, run.options.clip) / valid_tokens);
    return {loss.mean(), norm, learning_rate};
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = ContextParallelOptions;
  static constexpr const char *name = "14_context_parallel", *title = "Context parallelism (long sequences)";

  ContextParallel(Run& r, const Options& o) : run(r), options(o)
  {
    // Each of the two runs has scratch and activations of its own, because attention computes both at once.
    for (const std::int64_t number : runs.of(group.rank())) {
      const Workspace& scratch = *work.emplace_back(new Workspace(run.memory, run.config, run.shape));
      const Activations& of_run = *kept.emplace_back(new Activations(run.memory, run.config, run.shape, scratch));
      own.push_back({runs.tokens(number), scratch, of_run});
    }
    if (options.attention == AttentionBy::ring)
      attention = std::make_unique<RingAttention>(run, runs, group);
    else
      attention = std::make_unique<HeadExchange>(run, runs, group);
  }

  /// All parameters with their moments, on every rank.
  HeldShards shards()
  {
    return {{{table, {0, table.elements()}, master, adamw.first_moments(), adamw.second_moments()}}, *run.stream};
  }
  /// Each rank holds a whole replica of the model.
  int replica() const { return world.rank(); }
  auto& optimizer() { return adamw; }
  void after_load() { adamw.round(run.kernels, parameters.tensor()); }
  /// Parameters that must be the same on all ranks; the frame compares them.
  Tensor replicated() const { return parameters.tensor(); }
  std::string describe() const
  {
    return fmt::format("{} ranks divide each sequence, two runs of {} tokens each; {} replicas; collectives by {}",
                       runs.ranks, runs.length(), replicas.ranks(), describe_algorithm(world));
  }
  /// Which tokens each rank has.
  void report(Report& report) { report_plan(report, options, world.ranks()); }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                // options, device, data, ledgers
  const Options& options;  // as they were checked
  Mesh mesh{run.session, options.axes(run.session.ranks()), run.group_setup()};
  Group &world = mesh.world(), &replicas = mesh.group("dp"), &group = mesh.group("cp");
  Group& of_sums = run.arithmetic.continues_tree() ? replicas : world;  // ranks that add up gradients after a step
  Range share =
      Partition(run.batch.global_batch, replicas.ranks()).shard(replicas.rank());  // sequences of this group
  TokenRuns runs = options.runs(world.ranks());                                    // of each sequence
  ParameterTable table{run.config};                     // position of each tensor in the flat vectors
  std::int64_t head_unit = unit_count(run.config) - 1;  // last unit
  Model model{{run.config, run.kernels, {}, run.options.dropout, run.options.seed}};  // the layers
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};  // (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());           // views of the parameters
  std::unique_ptr<GradientSum> gradients = run.arithmetic.make_gradient_sum(  // (P)
      run.kernels, *run.stream, world.often_reduced(), gradient_layout(table, options.gradients));
  ContextGradients of_runs{run, gradient_layout(table, options.gradients), options.order, group};
  AdamW adamw{run.memory,     *run.stream,      table, {0, table.elements()},
              run.shape.type, run.options.adamw};     // (P) moments
  Tensor master = adamw.master(parameters.tensor());  // (P) f32 weights; in f32 the parameters themselves
  std::vector<std::unique_ptr<Workspace>> work;       // scratch of each run
  std::vector<std::unique_ptr<Activations>> kept;     // activations of each run
  std::vector<TokenRun> own;                          // this rank's two runs
  std::unique_ptr<ContextAttention> attention;        // how its queries meet all keys
  std::optional<Generator> generator;                 // generates the text of --sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::ContextParallel>(argc, argv);
}
