// Lesson 05: sharded gradients (ZeRO-2)
//
// Builds on:    lesson 04 (ZeRO-1)
// New idea:     A rank updates 1/N of the parameters, so it needs only 1/N of the summed gradients. The gradients
//               of a bucket are allocated when the backward pass reaches it, reduce-scattered as soon as they are
//               complete, and freed. Each rank keeps the sums of its own shards.
// Memory:       4 P + 12 P / N bytes of model state per rank (f32: parameter 4, gradient 4, two moments 8); bf16:
//               2 P + 16 P / N, with --gradients=bf16 2 P + 14 P / N; plus the buckets alive in a backward pass
// Traffic:      (M + 1) 4 P (N-1)/N bytes sent per rank and step of M micro-batches, each of which reduce-scatters
//               its gradients
// Paper:        Rajbhandari et al. 2020 (ZeRO), sections 5.2 and 7.2
//
// Sample runs:  mpirun -np 2 build/lessons/05_zero2 --steps=5
//               mpirun -np 4 build/lessons/05_zero2 --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//             * mpirun -np 4 build/lessons/05_zero2 --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 04, whatever the number of ranks; 1/N of its gradients.
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
#include "lessons/05_zero2/costs.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"

namespace rankwise {

/// What this rank holds: all parameters, and 1/N of the gradients and of the optimizer.
/// The frame (lessons/frame/train.hpp) does everything outside of a step.
class Zero2 {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Each rank computes its sequences of the global batch in M = G / (N B) micro-batches.
    // NEW: gradients are summed over the ranks after each micro-batch, not once a step. In micro-batch m the N
    // ranks take N B neighbouring sequences, B each.
    LossSum loss;
    {
      const auto counted = run.count("world");
      for (const Range& sequences : micro_batches_of_step(with_padding(run.batch, world), world)) {
        const MicroBatch batch = run.load(kept, sequences, step);
        loss += forward(batch);
        backward(batch);
      }
    }
    // Loss and gradients are sums so far. The loss travels with its number of tokens, by which both are divided.
    all_reduce_sum(loss, world);
    // NEW: the sums of this rank's shards, (P/N), are all that is left of the gradients.
    return update(step, loss, sums.totals());
  }

  /// Loss of a micro-batch, summed over its tokens. Keeps the activations that the backward pass needs.
  LossSum forward(const MicroBatch& batch)
  {
    // All parameters are here, so the forward pass sends nothing. The embedding: token plus position, (B T, C).
    const EmbeddingTensors& embedding = weights.embedding;
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), work.output, embedding, batch);
    // Attention and MLP in turn, 2 L branches. Each adds its output to the residual stream.
    forward_branches(0, model.branches.size(), batch);
    // The head: logits, (B T, V), and the cross-entropy of the next tokens.
    run.charge_forward(head_unit);
    return model.head.forward(kept.head, weights.head, batch);
  }

  /// Adds the gradient of that loss to the sums of this rank's shards.
  void backward(const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors& p_head = weights.head;
    // NEW: gradients are allocated, all zero, when the backward pass reaches their unit. The token embedding is
    // tied to the head: its gradients are allocated first and live until the lookup has added to them.
    const EmbeddingTensors d_embedding = embedding_tensors(gradients.allocate(0));
    const HeadTensors d_head = head_tensors(gradients.allocate(head_unit), gradients.tied_to(d_embedding.token));
    // Head: the gradient of the logits, then of the matrix and of the last norm. dx, (B T, C), starts from zero.
    model.head.apply_backward(output, d_head, kept.head, p_head, batch);
    run.stream->zero(dx);
    model.head.normalise_backward(dx, d_head, output, kept.head, p_head, batch);
    // unit_done() sends a bucket as soon as it is complete, while the backward pass continues.
    unit_done(head_unit, batch);

    // The branches, last first. With recomputation a block runs its forward pass again before its backward pass.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      // NEW: a slot for the gradients of this branch: about 16 C^2 bytes for attention, 32 C^2 for the MLP (f32).
      const BranchTensors d = branch_tensors(gradients.allocate(branch.unit()));
      // The branch's parts in reverse order: residual add, matrices, norm. dx becomes the input's gradient.
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      unit_done(branch.unit(), batch);
    }
    // The lookup adds the last gradients. NEW: wait for the last bucket, so that none is alive afterwards.
    model.embedding.backward(d_embedding, dx, batch);
    unit_done(0, batch);
    collect(batch);
  }

  /// Loss of the whole validation split, of which each rank computes every N-th micro-batch.
  LossSum evaluate()
  {
    LossSum loss =
        run.validate(kept, {world.rank(), world.ranks()}, [&](const MicroBatch& b) { return forward(b); });
    all_reduce_sum(loss, world);
    return loss;
  }

  /// The token that follows a text; all ranks compute the same.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run.memory, *run.stream, model, weights, run.batch.sequence);
    return pick_token(generator->next_logits(text), run.options.sampling, number);
  }

 private:
  /// Forward pass of branches [first, last): each computes x + branch(norm(x)), (B T, C).
  void forward_branches(std::size_t first, std::size_t last, const MicroBatch& batch)
  {
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      branch.normalise(kept.branches[i], p);
      branch.apply(work.output, kept.branches[i], p, batch);
      branch.add(kept.stream(i + 1), kept.branches[i], work.output, p, batch);
      run.charge_forward(branch.unit());
    }
  }

  /// A unit's gradients of this micro-batch are complete: reduce-scatters the bucket that it completes, if any.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    run.charge_backward(unit);
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      // The backward pass reaches the first unit of a bucket last; then the bucket is complete.
      if (buckets[bucket].units.first != unit) continue;
      // NEW: the previous bucket is freed first, so that at most two neighbouring buckets are alive.
      collect(batch);
      // Reduce-scatter the bucket while the backward pass continues: this rank receives the sum of its own shard.
      const std::vector<Tensor> ready = gradients.of(bucket);
      pending = queue.start(fmt::format("bucket of unit {}", unit),
                            [this, bucket, ready](Group& group) { sums.reduce_scatter(bucket, ready, group); });
      in_flight = bucket;
    }
  }

  /// NEW: the end of the bucket in flight, if there is one: waits for its reduce-scatter, adds this rank's shard of it
  /// to the sums, as the gradient of the N B sequences of all ranks, and frees the bucket. None is in flight
  /// afterwards. The time that this takes is exposed communication.
  /// @param batch  the micro-batch that the bucket's gradients are of.
  void collect(const MicroBatch& batch)
  {
    // BEGIN EXERCISE 05.1
    if (!in_flight) return;
    // Waiting time is exposed communication: the reduce-scatter took longer than the computation beside it.
    const auto span = run.time.span(Work::exposed, "summing gradients");
    const std::size_t bucket = *in_flight;
    pending.wait();
    // The shard now holds the gradient of N B sequences: it is added to the sum over the micro-batches so far.
    sums.add(bucket, of_all_ranks(batch.rows.sequences, world), gradients.of(bucket, own[bucket]));
    gradients.free(bucket);
    in_flight.reset();
    // END EXERCISE
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& shard_gradients)
  {
    // BEGIN TWIN 04.3
    // The norm of all P mean gradients: each rank squares those of its shards, and the squares are all-reduced.
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(squared_norm(run.kernels, shard_gradients, world)) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(run, step, loss.mean(), norm, adamw.shards(), shard_gradients, world);
    // The update stands between the two halves of an all-reduce: each rank updates only its shards, (P/N), and the
    // all-gather after it makes the updated parameters the same on all ranks.
    adamw.step(run.kernels, shard_gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    return {loss.mean(), norm, learning_rate};
    // END TWIN
  }

  /// All-gathers the updated parameters, bucket by bucket: (N-1)/N of 4 P bytes, once a step.
  void gather_parameters()
  {
    const auto counted = run.count("world");
    // Nothing is left to compute in this step, so this communication is exposed.
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    for (const Bucket& bucket : buckets) all_gather(parameters.tensor().slice(bucket.elements), world);
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = Zero2Options;
  static constexpr const char *name = "05_zero2", *title = "Sharded gradients (ZeRO-2)";

  Zero2(Run& r, const Options& o) : run(r), options(o) {}

  /// This rank's shard of each bucket, with its moments.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  auto& optimizer() { return adamw; }
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

  Run& run;                                                        // device, data, ledgers
  const Options& options;                                          // as checked by the frame
  Group world{"world", Communicator::world(), run.group_setup()};  // all N ranks
  ParameterTable table{run.config};                                // layout of a flat vector, (P)
  std::int64_t head_unit = unit_count(run.config) - 1;             // last unit of the table
  Model model{{run.config, run.kernels, {}, run.options.dropout, run.options.seed}};  // the layers
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};  // (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());                            // views of them
  std::vector<Bucket> buckets = make_buckets(table, options.gradients, options.bucket.value);  // in backward order
  CommunicationQueue queue{world, run.time};  // sends while this rank computes
  Pending pending;                            // reduce-scatter of one bucket
  std::optional<std::size_t> in_flight;       // number of that bucket
  std::vector<BucketShard> bucket_shards = make_bucket_shards(buckets, world.ranks());  // owner of each element
  std::vector<Range> own = shards_of(world.rank(), bucket_shards);  // this rank's shard of each bucket
  ShardedAdamW adamw{run.memory,       *run.stream, table, own, slices(parameters.tensor(), own),
                     run.options.adamw};                                                         // (P/N) moments
  ShardSums sums{run.kernels, *run.stream, run.memory, step_plan(options), own, world.ranks()};  // (P/N)  <- NEW
  BucketGradients gradients{run.memory, *run.stream, table, buckets,
                            sums_of(step_plan(options))};     // buckets that are alive  <- NEW
  Workspace work{run.memory, run.config, run.shape};          // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // saved for the backward pass
  std::optional<Generator> generator;                         // makes samples
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Zero2>(argc, argv);
}
