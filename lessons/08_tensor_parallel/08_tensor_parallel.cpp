// Lesson 08: tensor parallelism, sequence parallelism, vocabulary-parallel loss
//
// Builds on:    lesson 01 (a single device)
// New idea:     t ranks compute every layer together. Of a branch's two matrices a rank holds some columns of the
//               first and the matching rows of the second, so nothing is sent between the two, and the branch ends
//               with one sum over the ranks. The loss needs three numbers a token from the other ranks instead of V
//               logits. With --sequence-parallel each sum is split into its two halves, reduce-scatter and
//               all-gather, and between them a rank has only T / t tokens of each sequence.
// Memory:       16 P / t bytes of model state a rank (positions, norms and the biases after a sum are replicated),
//               and s R (4 C + 12 C / t) bytes of activations a layer; with --sequence-parallel
//               s R (2 C + 14 C / t), with --regather s R 16 C / t; and s R V / t of logits
// Traffic:      8 (t-1)/t B T C numbers a layer and micro-batch (four sums), 10 with --regather, however many
//               parameters the layer has; embedding and head together half as many as a layer; (t-1) (1 + 4/t)
//               numbers a token for the loss
// Paper:        Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022 (sequence parallelism),
//               section 4.2
//
// Sample runs:  mpirun -np 2 build/lessons/08_tensor_parallel --steps=5
//               mpirun -np 4 build/lessons/08_tensor_parallel --steps=5 --sequence-parallel
//             * mpirun -np 4 build/lessons/08_tensor_parallel --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 01, whatever t is; 1/t of every divided matrix on each rank.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/messages/mesh.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/generate.hpp"
#include "lessons/08_tensor_parallel/costs.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"
#include "lessons/parallel/tensor/split.hpp"
#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"
#include "lessons/parallel/tensor/vocabulary_parallel_loss.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"

namespace rankwise {

/// One tensor-parallel rank: its shard of every layer, and a training step with it. The frame
/// (lessons/frame/train.hpp) does the rest.
class TensorParallel {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // NEW: the t ranks of a replica load the same sequences and compute them together. Replicas, if there are
    // several, divide the global batch, and each takes its sequences in micro-batches (gradient accumulation).
    LossSum loss;
    gradients->clear();
    for (std::int64_t first = share.first; first < share.end(); first += run.batch.micro_batch) {
      const auto counted = run.count("tp");
      const Range sequences{first, run.batch.micro_batch};
      const MicroBatch batch = run.load(kept, sequences, step);
      // Losses and gradients are added up as sums over tokens; update() divides them once by the number of tokens.
      const GradientTensors d = gradients->begin(sequences);
      loss += forward(batch);
      backward(model_tensors(table, d), batch);
      // NEW: with sequence parallelism a rank's gradients of norms and of biases after a sum cover T / t tokens of
      // each sequence. One all-reduce a micro-batch, of 3 C numbers a branch and sequence, completes them.
      row_gradients.add_to(d.flat, tp);
      gradients->end(sequences);
    }
    // NEW: data parallelism on top: the dp ranks that hold the same shard add up its P / t gradients, once a step.
    // The losses are added up over replicas only, because all t ranks of a replica have the same loss already.
    {
      const auto counted = run.count("dp");
      for (const PartialSum& sums : gradients->sums()) all_reduce_sum(sums, dp);
    }
    all_reduce_sum(loss, dp);
    return update(step, loss, gradients->total());
  }

  /// Loss of a micro-batch, summed over its tokens; what the backward pass needs is kept.
  ///
  /// NEW: Megatron-LM's operators f and g, before and after the divided layers; right: with sequence parallelism.
  ///
  ///                  f                               g
  ///     forward      nothing    | all-gather         all-reduce | reduce-scatter
  ///     backward     all-reduce | reduce-scatter     nothing    | all-gather
  ///
  /// parts.gathered() is f and parts.sum() g in the forward pass; parts.sum() is f and parts.gather() g in the
  /// backward pass. An all-reduce sends 2 (t-1)/t B T C numbers, each of its halves on the right (t-1)/t B T C.
  LossSum forward(const MicroBatch& batch)
  {
    const MicroBatch rows = tokens_of(batch, run.shape.tokens);  // with sequence parallelism T / t tokens of each
    // NEW: a rank holds V / t rows of the token embedding. It looks up the tokens among these and writes zeros for
    // the others: partial sums (R, C), which operator g makes whole. The residual stream is (R, C), or (R / t, C)
    // with sequence parallelism.
    const EmbeddingTensors& embedding = weights.embedding;
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), parts.sum(work.output), embedding, rows);
    forward_branches(0, model.branches.size(), batch);
    // NEW: the head keeps the logits of this rank's V / t vocabulary entries, (R, V / t). For the cross-entropy the
    // ranks exchange three numbers a token, and no logits.
    run.charge_forward(head_unit);
    return vocabulary_parallel_loss(model.head, weights.head, kept.head, batch, parts);
  }

  /// Adds the gradient of that loss with respect to all parameters of this shard to @p gradient.
  void backward(const ModelTensors& gradient, const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors &p_head = weights.head, &d_head = gradient.head;
    const MicroBatch rows = tokens_of(batch, run.shape.tokens);
    // NEW: each column contributes to the gradient of the matrix's input, so a rank that has some of the columns
    // computes a partial sum (R, C) of that gradient. Operator f sums it over the ranks.
    model.head.apply_backward(output, d_head, parts.regathered(kept.head), p_head, batch);
    run.stream->zero(dx);
    row_gradients.normalise_backward(model.head, dx, d_head, parts.sum(output), kept.head, p_head, rows);
    run.charge_backward(head_unit);

    // Then each branch, last first, adds its contribution to the stream's gradient dx, (R, C) or (R / t, C).
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // Recomputation runs a block's forward pass again, with its two sums.
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors& d = gradient.branches[i];
      const BranchActivations& a = kept.branches[i];
      // NEW: g in the backward pass. The gradient of a sum is the gradient of each of its terms, so nothing is
      // sent; with sequence parallelism an all-gather collects all rows of doutput, (R, C).
      const Tensor own = row_gradients.add_backward(branch, d, dx, output, rows);
      const Tensor doutput = parts.gather(own, output);
      branch.apply_backward(output, d, doutput, work.wide, parts.regathered(a), p, batch);
      // NEW: f in the backward pass. The partial sums of dnormalised are added up over the t ranks by an
      // all-reduce; with sequence parallelism by a reduce-scatter, which leaves this rank's rows.
      const Tensor dnormalised = parts.sum(output);
      row_gradients.normalise_backward(branch, dx, d, dnormalised, a, p, rows);
      run.charge_backward(branch.unit());
    }
    // The embedding ended with g, so its gradient is gathered too; a rank adds up what concerns its V / t entries.
    model.embedding.backward(gradient.embedding, parts.gather(dx, output), batch);
  }

  /// Loss of the whole validation split, of which each replica computes every dp-th micro-batch.
  LossSum evaluate()
  {
    LossSum loss = run.validate(kept, {dp.rank(), dp.ranks()}, [&](const MicroBatch& b) { return forward(b); });
    all_reduce_sum(loss, dp);
    return loss;
  }

  /// The token that follows a text, the same on all ranks. A rank caches the keys and values of its own heads.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run.memory, *run.stream, model, run.shape.type, run.batch.sequence);
    generator->begin(text);
    all_reduce_sum(generator->lookup(weights.embedding), tp);
    generator->add(weights.embedding);
    for (std::size_t i = 0; i < model.branches.size(); ++i) {
      all_reduce_sum(generator->apply(i, weights.branches[i]), tp);
      generator->add(i, weights.branches[i]);
    }
    // Only here are all V logits gathered, those of one row, to draw a token from them.
    const Tensor own = generator->logits(weights.head);
    const std::int64_t n = own.elements();
    const Buffer logits(run.memory, Category::workspace, run.shape.type, {tp.ranks() * n}, "all logits");
    run.stream->copy(logits.tensor().slice({tp.rank() * n, n}), own);
    all_gather(logits.tensor(), tp);
    return pick_token(read_logits(*run.stream, logits.tensor(), run.config), run.options.sampling, number);
  }

 private:
  /// Forward pass of branches [first, last): each adds branch(norm(x)) to the stream x that it gets, kept.stream(i), and
  /// leaves the sum in kept.stream(i + 1). Both are (R, C), or this rank's (R / t, C) with sequence parallelism.
  ///
  /// A rank normalises and adds its own rows of a micro-batch (parts.own(), tokens_of()), and applies its shard of the
  /// matrices to the rows of all ranks (parts.gathered()), which gives a partial sum in work.output, (R, C). parts.sum()
  /// is the sum over the ranks, this rank's rows of it. kept.branches[i] keeps what the backward pass needs of branch
  /// i, whose parameters are weights.branches[i]. The operations of each branch are charged to the virtual clock.
  void forward_branches(std::size_t first, std::size_t last, const MicroBatch& batch)
  {
    // BEGIN EXERCISE 08.1
    const MicroBatch rows = tokens_of(batch, run.shape.tokens);
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      // NEW: f gives every rank all normalised rows, (R, C). Both matrices follow with no message in between, because
      // a rank multiplies its columns of the first by its rows of the second. The result is a partial sum, (R, C),
      // and g adds up those of all ranks.
      branch.normalise(parts.own(kept.branches[i]), p);
      branch.apply(work.output, parts.gathered(kept.branches[i]), p, batch);
      const Tensor sum = parts.sum(work.output);
      branch.add(kept.stream(i + 1), kept.branches[i], sum, p, rows);
      run.charge_forward(branch.unit());
    }
    // END EXERCISE
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const LossSum& loss, const Tensor& gradient)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    // NEW: the norm is that of the whole model: each rank adds the squares of its P / t elements, and an element
    // that is replicated on t ranks counts once, on rank 0.
    std::vector<Tensor> own;
    for (const Range& elements : owned) own.push_back(gradient.slice(elements));
    const double norm = std::sqrt(squared_norm(run.kernels, own, tp)) / valid_tokens;
    // A rank updates all it holds. Replicated parameters have the same gradient on all t ranks and stay the same.
    const double learning_rate = run.schedule.at(step);
    check_finite(run, step, loss.mean(), norm, {{table, {0, table.elements()}, master, {}, {}}}, {gradient},
                 mesh.world());
    adamw.step(run.kernels, parameters.tensor(), gradient, learning_rate,
               clip_factor(norm, run.options.clip) / valid_tokens);
    return {loss.mean(), norm, learning_rate};
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = TensorParallelOptions;
  static constexpr const char *name = "08_tensor_parallel",
                              *title = "Tensor parallelism, sequence parallelism, vocabulary-parallel loss";

  TensorParallel(Run& r, const Options& o) : run(r), options(o) {}

  /// All parameters that this rank holds: its rows or columns of the divided tensors, and the replicated ones.
  HeldShards shards()
  {
    return {{{table, {0, table.elements()}, master, adamw.first_moments(), adamw.second_moments()}}, *run.stream};
  }
  /// The parameters that this rank owns, so that each belongs to one rank of the replica: rank 0 owns the
  /// replicated ones.
  HeldShards owned_shards()
  {
    std::vector<Shard> shards;
    for (const Range& e : owned)
      shards.push_back(
          {table, e, master.slice(e), adamw.first_moments().slice(e), adamw.second_moments().slice(e)});
    return {shards, *run.stream};
  }
  int replica() const { return dp.rank(); }
  auto& optimizer() { return adamw; }
  void after_load() { adamw.round(run.kernels, parameters.tensor()); }
  std::string describe() const
  {
    return fmt::format("collectives by {}; --tp={}: {} of the model on each rank", describe_algorithm(tp),
                       tp.ranks(), tp.ranks() == 1 ? "all" : fmt::format("1/{}", tp.ranks()));
  }
  /// Checks that the replicated parameters, which every rank updates by itself, are still the same on all ranks.
  void report(Report& report) const
  {
    std::string hashes;
    for (const Parameter& p : table.entries())
      if (p.split == Split::none) hashes += replica_hash(*run.stream, master.slice(p.elements));
    const bool same = same_on_all_ranks(hashes);
    report.check("replicated parameters", "the same", same ? "the same" : "different", same);
  }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                                      // device, data, ledgers
  const Options& options;                                                        // what was asked for
  Mesh mesh{run.session, options.axes(run.session.ranks()), run.group_setup()};  // all N ranks
  Group &tp = mesh.group("tp"), &dp = mesh.group("dp");                          // t neighbours; dp replicas
  Range share = Partition(run.batch.global_batch, dp.ranks()).shard(dp.rank());  // sequences of this replica
  ParameterTable table{run.config, run.shape.part};                              // of this rank's shards
  std::vector<Range> owned = owned_elements(table, run.shape.part);              // elements counted on this rank
  std::int64_t head_unit = unit_count(run.config) - 1;                           // unit of the head
  Model model{{run.config, run.kernels, run.shape.part, run.options.dropout, run.options.seed}};  // the chain
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};  // (P/t)
  ModelTensors weights = model_tensors(table, parameters.tensor());           // views of them
  std::unique_ptr<GradientSum> gradients = run.arithmetic.make_gradient_sum(  // (P/t)
      run.kernels, *run.stream, dp.often_reduced(), gradient_layout(table, run.options.gradients));
  AdamW adamw{run.memory,     *run.stream,      table, {0, table.elements()},
              run.shape.type, run.options.adamw};             // (P/t) moments
  Tensor master = adamw.master(parameters.tensor());          // (P/t) f32: master weights
  Workspace work{run.memory, run.config, run.shape};          // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // from a forward pass to its backward pass
  TensorParallelMessages parts{tp, run.shape, run.config.channels, work, run.kernels, run.time};  // f and g
  RowGradients row_gradients{tp.memory(), *run.stream, table, run.shape, run.kernels};            // norms, biases
  std::optional<GeneratingPass> generator;                                                        // for --sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::TensorParallel>(argc, argv);
}
