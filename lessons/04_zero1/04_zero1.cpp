// Lesson 04: sharded optimizer (ZeRO-1)
//
// Builds on:    lesson 03 (DDP)
// New idea:     AdamW's moments are needed only where parameters are updated, so each rank keeps and updates 1/N
//               of them. An all-reduce is a reduce-scatter and an all-gather: the update now stands between the
//               two, and the all-gather carries updated parameters instead of gradients.
// Memory:       8 P + 8 P / N bytes of model state on each rank (f32: parameter 4, gradient 4, two moments 8);
//               bf16: 6 P + 12 P / N, with --gradients=bf16 4 P + 12 P / N
// Traffic:      8 P (N-1)/N bytes sent per rank and step, the same as lesson 03
// Paper:        Rajbhandari et al. 2020 (ZeRO), section 5.1
//
// Sample runs:  mpirun -np 2 build/lessons/04_zero1 --steps=5
//               mpirun -np 4 build/lessons/04_zero1 --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//             * mpirun -np 4 build/lessons/04_zero1 --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 03, whatever the number of ranks; 1/N of its moments.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/messages/communication_queue.hpp"
#include "gpt2/generate.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/gradient_exchange.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"
#include "lessons/parallel/zero/zero1_costs.hpp"

namespace rankwise {

/// A training step of one rank, which holds a replica of the model and 1/N of the optimizer state. The frame does
/// the rest (lessons/frame/train.hpp).
class Zero1 {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Rank r computes G / N sequences of the global batch, in micro-batches of B (gradient accumulation).
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
      // NEW: reduce-scatters in place of all-reduces, (N-1)/N of 4 P bytes sent per rank, during the backward pass.
      wait_for_buckets();
    }
    // The loss and its number of valid tokens are summed over the ranks too: one message of 40 bytes.
    all_reduce_sum(loss, world);
    // NEW: of the gradients, (P), only this rank's shards, (P/N), hold the sums over all ranks.
    return update(step, loss, slices(gradients->total(), own));
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
    // unit_done() after each layer, the last layer first, sends the buckets that are complete with it.
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

  /// Called when the backward pass has computed the gradients of a unit, that is embedding, branch or head.
  /// NEW: the first half of an all-reduce. A reduce-scatter leaves rank r with the sums of shard r of the bucket.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    run.charge_backward(unit);
    // BEGIN TWIN 03.3
    // Gradient accumulation: only the last micro-batch makes the sums final, so a step sends each bucket once.
    const bool last = batch.rows.sequences.end() == share.end();
    if (!last) return;
    for (const Bucket& bucket : buckets) {
      // The backward pass goes through the units in descending order: a bucket is complete with its first one.
      if (bucket.units.first != unit) continue;
      // NEW: the second thread sends (N-1)/N of the bucket's bytes per rank, half of what an all-reduce sends.
      const std::vector<PartialSum> ready = gradients->finish(bucket.elements);
      pending.push_back(queue.start(fmt::format("bucket of unit {}", unit),
                                    [ready](Group& group) { reduce_scatter_sum(ready, group); }));
    }
    // END TWIN
  }

  /// Waits for all buckets. This time is exposed communication: no computation hides it.
  void wait_for_buckets()
  {
    const auto span = run.time.span(Work::exposed, "summing gradients");
    // The last bucket, with the embedding, became complete only at the end of the backward pass.
    for (Pending& bucket : pending) bucket.wait();
    pending.clear();
  }

  /// NEW: the update stands between the two halves of the all-reduce: each rank updates only its shards, and then all
  /// ranks gather all parameters. AdamW gets the mean gradient over all valid tokens, clipped to a norm of at most
  /// --clip. That norm is of all P mean gradients, the same on every rank. A loss or gradient that is not finite ends
  /// the run before it reaches the parameters, check_finite().
  /// @param step             decides the learning rate, run.schedule.
  /// @param loss             sums over all ranks: the loss and the number of valid tokens.
  /// @param shard_gradients  sums over all ranks, one tensor for each of this rank's shards, (P/N) in all.
  /// @return                 mean loss, norm and learning rate of the step.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& shard_gradients)
  {
    // BEGIN EXERCISE 04.3
    // NEW: the norm of all P gradients: the squares of each rank's shards, summed over the ranks (32 bytes).
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(squared_norm(run.kernels, shard_gradients, world)) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    // A loss or gradient that is not finite ends the run before it reaches the parameters.
    check_finite(run, step, loss.mean(), norm, adamw.shards(), shard_gradients, world);
    // Each rank updates P / N parameters, with moments of 8 P / N bytes, in place of P.
    adamw.step(run.kernels, shard_gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    return {loss.mean(), norm, learning_rate};
    // END EXERCISE
  }

  /// NEW: the second half of the all-reduce. It carries updated parameters, which all ranks need for the next step.
  void gather_parameters()
  {
    const auto counted = run.count("world");
    // (N-1)/N of 4 P bytes sent per rank. Nothing is computed meanwhile, so all of it is exposed.
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    for (const Bucket& bucket : buckets) all_gather(parameters.tensor().slice(bucket.elements), world);
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = Zero1Options;
  static constexpr const char *name = "04_zero1", *title = "Sharded optimizer (ZeRO-1)";

  Zero1(Run& r, const Options& o) : run(r), options(o) {}

  /// NEW: this rank's shard of each bucket, with its moments.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  auto& optimizer() { return adamw; }
  /// Every rank gathers the parameters of all shards.
  void after_load()
  {
    adamw.round(run.kernels);
    gather_parameters();
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
  std::vector<BucketShard> bucket_shards = make_bucket_shards(buckets, world.ranks());  // owner of each element
  std::vector<Range> own = shards_of(world.rank(), bucket_shards);  // this rank's shard of each bucket
  ShardedAdamW adamw{run.memory,       *run.stream, table, own, slices(parameters.tensor(), own),
                     run.options.adamw};                      // moments of these shards, (P/N)
  Workspace work{run.memory, run.config, run.shape};          // scratch of the forward and the backward pass
  Activations kept{run.memory, run.config, run.shape, work};  // activations of one micro-batch
  std::optional<Generator> generator;                         // generates the text of --sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Zero1>(argc, argv);
}
