// Lesson 03: Data parallelism (DDP)
//
// Builds on:    lesson 01 (a single device)
// New idea:     every rank has a replica of the model and computes 1/N of the global batch. An all-reduce sums the
//               gradients over the ranks, so that all make the same update. A layer's gradients are complete long
//               before the backward pass ends: they are sent in buckets while it computes.
// Memory:       16 P bytes of model state on every rank (bf16: 18 P or 16 P), as in lesson 01; the activations of
//               one micro-batch; message buffers
// Traffic:      8 P (N-1)/N bytes sent per rank and step (f32: gradients of 4 P bytes, twice (N-1)/N of them), half
//               of it with --gradients=bf16; exact arithmetic keeps the tied embedding's two gradients as separate
//               sums, V C elements more
// Paper:        Li et al. 2020 (PyTorch DDP); Patarasuk and Yuan 2009 (ring all-reduce)
//
// Sample runs:  mpirun -np 4 build/lessons/03_ddp --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//               mpirun -np 4 build/lessons/03_ddp --steps=10 --bucket=100kB --compare=10
//             * mpirun -np 4 build/lessons/03_ddp --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 01, whatever the number of ranks; 1/N of its activations.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/messages/communication_queue.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/generate.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/ddp_costs.hpp"

namespace rankwise {

/// A training step of one rank, which holds a replica of the model. The frame does the rest
/// (lessons/frame/train.hpp).
class Ddp {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // NEW: rank r computes G / N sequences of the global batch, in micro-batches of B (gradient accumulation).
    // Loss and gradients stay sums over tokens, over micro-batches and over ranks: update() divides them once.
    LossSum loss;
    gradients->clear();
    {
      // Everything that is sent until the end of this scope is compared with the formula.
      const auto counted = run.count("world");
      for (std::int64_t first = share.first; first < share.end(); first += run.batch.micro_batch) {
        const Range sequences{first, run.batch.micro_batch};
        const MicroBatch batch = run.load(kept, sequences, step);  // inputs and targets: (R) tokens each, R = B T
        // The forward pass keeps its activations for the backward pass, which adds to the gradients, (P).
        const GradientTensors d = gradients->begin(sequences);
        loss += forward(batch);
        backward(model_tensors(table, d), batch);
        gradients->end(sequences);
      }
      // NEW: the gradients of all ranks add up to those of the global batch: 2 (N-1)/N of 4 P bytes sent per rank.
      // If overlapped, most have been sent during the backward pass, and the step waits for the rest.
      if (options.strategy == Strategy::overlapped)
        wait_for_buckets();
      else
        sum_after_backward();
    }
    // NEW: the loss and its number of valid tokens are summed over the ranks too: one message of 40 bytes.
    all_reduce_sum(loss, world);
    // Each rank makes the same update of its replica.
    return update(step, loss, gradients->total());
  }

  /// Loss of a micro-batch, summed over its tokens. Keeps the activations that the backward pass needs.
  LossSum forward(const MicroBatch& batch)
  {
    // Embedding: the residual stream begins as x = dropout(wte[token] + wpe[position]), (R, C).
    const EmbeddingTensors& embedding = weights.embedding;
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), work.output, embedding, batch);
    // Each of the L blocks is two branches: x = x + attention(norm(x)), then x = x + mlp(norm(x)).
    forward_branches(0, model.branches.size(), batch);
    // Head: logits = norm(x) wte', (R, V), with wte tied to the embedding's; then the cross-entropy of each target.
    run.charge_forward(head_unit);
    return model.head.forward(kept.head, weights.head, batch);
  }

  /// Adds the gradient of that loss with respect to all parameters to @p gradient.
  void backward(const ModelTensors& gradient, const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors &p_head = weights.head, &d_head = gradient.head;
    // The chain rule starts at the loss. Cross-entropy: dlogits = soft-max(logits) - one-hot(target), (R, V), in
    // the memory of the logits; then dwte += dlogits' norm(x), and dlogits wte, (R, C), is the gradient of norm(x).
    model.head.apply_backward(output, d_head, kept.head, p_head, batch);
    // From here on dx, (R, C), is the gradient of the residual stream.
    run.stream->zero(dx);
    model.head.normalise_backward(dx, d_head, output, kept.head, p_head, batch);
    // NEW: unit_done() after each layer, the last layer first, sends the buckets that are complete with it.
    unit_done(head_unit, batch);

    // Branches in reverse order. The residual connection passes dx on unchanged; each branch adds its contribution.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // Recomputation: only a block's input was kept, so its forward pass runs again before its backward pass.
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors& d = gradient.branches[i];
      // The three steps of the forward pass, last first. Dropout and bias: gradient of the output, (R, C).
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      // The two matrices, with attention or GELU between them: output becomes norm(x)'s gradient, (R, C).
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      // The norm adds its input's gradient to dx.
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      unit_done(branch.unit(), batch);
    }
    // The tied wte gets its second gradient: the row of each token += its row of dx. So does wpe, by position.
    model.embedding.backward(gradient.embedding, dx, batch);
    unit_done(0, batch);
  }

  /// Loss of the whole validation split. Rank r computes micro-batches r, r + N, r + 2 N, ...
  LossSum evaluate()
  {
    LossSum loss =
        run.validate(kept, {world.rank(), world.ranks()}, [&](const MicroBatch& b) { return forward(b); });
    all_reduce_sum(loss, world);
    return loss;
  }

  /// The next token of a text, computed by all ranks alike.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run.memory, *run.stream, model, weights, run.batch.sequence);
    return pick_token(generator->next_logits(text), run.options.sampling, number);
  }

 private:
  /// Forward pass of branches [first, last).
  void forward_branches(std::size_t first, std::size_t last, const MicroBatch& batch)
  {
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      // Pre-norm: x + f(norm(x)), where f is attention over H heads, or an MLP with one hidden layer and GELU.
      branch.normalise(kept.branches[i], p);
      branch.apply(work.output, kept.branches[i], p, batch);
      branch.add(kept.stream(i + 1), kept.branches[i], work.output, p, batch);
      run.charge_forward(branch.unit());
    }
  }

  /// NEW: the naive sum, after the last backward pass: no rank computes while the gradients are sent. Leaves in each
  /// tensor of gradients->sums() the sum over all ranks: the first one holds all (P) elements of the flat vector, and
  /// is all-reduced in the pieces of pieces_of(), one after the other; a second one, of exact arithmetic, is the head's
  /// gradient of the tied wte, (V, C), and is all-reduced whole. Nothing is divided. Its time is exposed communication.
  void sum_after_backward()
  {
    // BEGIN EXERCISE 03.1
    const auto span = run.time.span(Work::exposed, "summing gradients");
    // Each piece, a tensor, a bucket or all P elements, is one all-reduce: 2 (N-1)/N of its bytes sent per rank.
    const std::vector<PartialSum> sums = gradients->sums();
    for (const Range& piece : pieces_of(table, options.gradients, options.strategy, options.bucket.value))
      all_reduce_sum(sums[0].slice(piece), world);
    // In exact arithmetic the head's gradient of wte, (V, C), is a separate sum.
    if (sums.size() > 1) all_reduce_sum(sums[1], world);
    // END EXERCISE
  }

  /// Called in each micro-batch when the backward pass has computed the gradients of a unit (embedding, branch or
  /// head), for the last unit first. Charges the unit's arithmetic to the virtual clock, run.charge_backward().
  /// NEW: the overlapped sum, of this strategy only. A complete bucket is all-reduced on the queue, every tensor that
  /// gradients->finish() returns for its elements, while the backward pass computes the next one; wait_for_buckets()
  /// waits for what is pending. In a step each bucket is sent once, when the sums over all micro-batches are final.
  /// @param unit   of the parameter table.
  /// @param batch  the micro-batch; this rank's last one ends where its share of the sequences does.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    // BEGIN EXERCISE 03.3
    run.charge_backward(unit);
    if (options.strategy != Strategy::overlapped) return;
    // Gradient accumulation: only the last micro-batch makes the sums final, so a step sends each bucket once.
    const bool last = batch.rows.sequences.end() == share.end();
    if (!last) return;
    for (const Bucket& bucket : buckets) {
      // The backward pass goes through the units in descending order: a bucket is complete with its first one.
      if (bucket.units.first != unit) continue;
      // A second thread sends the bucket, 2 (N-1)/N of its bytes per rank, while this one computes the next layer.
      const std::vector<PartialSum> ready = gradients->finish(bucket.elements);
      pending.push_back(queue.start(fmt::format("bucket of unit {}", unit), [ready](Group& group) {
        for (const PartialSum& sum : ready) all_reduce_sum(sum, group);
      }));
    }
    // END EXERCISE
  }

  /// NEW: waits for all buckets. This time is exposed communication: no computation hides it.
  void wait_for_buckets()
  {
    const auto span = run.time.span(Work::exposed, "summing gradients");
    // The last bucket, with the embedding, became complete only at the end of the backward pass.
    for (Pending& bucket : pending) bucket.wait();
    pending.clear();
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const LossSum& loss, const Tensor& gradient)
  {
    // The gradient, (P), is still a sum over tokens: its norm is divided here, its elements by the factor below.
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(run.kernels->squared_norm(gradient).value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    // A loss or gradient that is not finite ends the run before it reaches the parameters.
    check_finite(step, loss.mean(), norm, run.kernels, table, gradient, master);
    // AdamW updates the moments, 8 P bytes, and the f32 weights, of which bf16 parameters are the rounded copy.
    adamw.step(run.kernels, parameters.tensor(), gradient, learning_rate,
               clip_factor(norm, run.options.clip) / valid_tokens);
    return {loss.mean(), norm, learning_rate};
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = DdpOptions;
  static constexpr const char *name = "03_ddp", *title = "Data parallelism (DDP)";

  Ddp(Run& r, const Options& o) : run(r), options(o) {}

  /// All parameters with their moments, on every rank.
  HeldShards shards()
  {
    return {{{table, {0, table.elements()}, master, adamw.first_moments(), adamw.second_moments()}}, *run.stream};
  }
  /// Each rank holds a whole replica of the model.
  int replica() const { return world.rank(); }
  auto& optimizer() { return adamw; }
  /// All ranks begin with the parameters of rank 0, 4 P bytes.
  void after_load()
  {
    broadcast(master, 0, world);
    adamw.round(run.kernels, parameters.tensor());
  }
  /// Parameters that must be the same on all ranks; the frame compares them.
  Tensor replicated() const { return parameters.tensor(); }
  std::string describe() const
  {
    return fmt::format("collectives by {}; {} buckets", describe_algorithm(world), buckets.size());
  }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                        // options, device, data, ledgers
  const Options& options;                                          // as they were checked
  Group world{"world", Communicator::world(), run.group_setup()};  // all N ranks
  Range share = Partition(run.batch.global_batch, world.ranks()).shard(world.rank());  // sequences of this rank
  ParameterTable table{run.config};                     // position of each tensor in the flat vectors
  std::int64_t head_unit = unit_count(run.config) - 1;  // last unit
  Model model{{run.config, run.kernels, {}, run.options.dropout, run.options.seed}};  // the layers
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};  // (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());           // views of the parameters
  std::unique_ptr<GradientSum> gradients = run.arithmetic.make_gradient_sum(  // (P)
      run.kernels, *run.stream, world.often_reduced(), gradient_layout(table, options.gradients));
  std::vector<Bucket> buckets = make_buckets(table, options.gradients, options.bucket.value);  // last unit first
  CommunicationQueue queue{world, run.time};  // a second thread, which sends them
  std::vector<Pending> pending;               // collectives that were started
  AdamW adamw{run.memory,     *run.stream,      table, {0, table.elements()},
              run.shape.type, run.options.adamw};             // (P) moments
  Tensor master = adamw.master(parameters.tensor());          // (P) f32 weights; in f32 the parameters themselves
  Workspace work{run.memory, run.config, run.shape};          // scratch of the forward and the backward pass
  Activations kept{run.memory, run.config, run.shape, work};  // activations of one micro-batch
  std::optional<Generator> generator;                         // generates the text of --sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Ddp>(argc, argv);
}
