// Lesson 05: sharded gradients (ZeRO-2)
//
// Builds on:    lesson 04 (ZeRO-1)
// New idea:     a rank needs the sums of its own shards' gradients, and of the others nothing: the gradients of a bucket
//               are allocated when the backward pass comes to them, sent to their owners as soon as they are complete, and
//               freed. What stays are the sums of 1/N of all elements.
// Memory:       4 P + 12 P / N bytes of model state on each rank (f32: parameter 4, gradient 4, two moments 8); bf16: 2 P +
//               16 P / N, with --gradients=bf16 2 P + 14 P / N; and the buckets that are on their way
// Traffic:      (M + 1) 4 P (N-1)/N bytes sent per rank and step of M passes: gradients travel after each of them
// Paper:        Rajbhandari et al. 2020 (ZeRO), sections 5.2 and 7.2
//
// Sample runs:  build/lessons/05_zero2 --steps=3
//               mpirun -np 2 build/lessons/05_zero2 --steps=5
//               mpirun -np 3 build/lessons/05_zero2 --steps=3 --global-batch=12 --micro-batch=2
//               mpirun -np 4 build/lessons/05_zero2 --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//               mpirun -np 4 build/lessons/05_zero2 --steps=10 --bucket=100kB --compare=10
//               mpirun -np 4 build/lessons/05_zero2 --steps=3 --precision=bf16 --gradients=bf16
//               rm -f build/zero2.h5; mpirun -np 4 build/lessons/05_zero2 --steps=3 --checkpoint=build/zero2.h5
//               mpirun -np 2 build/lessons/05_zero2 --steps=5 --checkpoint=build/zero2.h5 --resume
//               mpirun -np 4 build/lessons/05_zero2 --model=gpt2-xl --dry-run
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
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/04_zero1/sharded_adamw.hpp"
#include "lessons/04_zero1/sharded_norm.hpp"
#include "lessons/05_zero2/bucket_gradients.hpp"
#include "lessons/05_zero2/costs.hpp"
#include "lessons/05_zero2/shard_sums.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// What this rank holds: all parameters, and 1/N of gradients and optimizer.
/// The frame (lessons/frame/train.hpp) does what is no part of a step.
class Zero2 {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // NEW: gradients are summed over the ranks after each micro-batch, so the ranks' micro-batches are neighbours.
    LossSum loss;
    {
      const auto counted = run.count("world");
      for (const Range& sequences : micro_batches_of_step(run.batch, world)) {
        const MicroBatch batch = run.load(kept, sequences, step);
        loss += forward(batch);
        backward(batch);
      }
    }
    all_reduce_sum(loss, world);
    return update(step, loss, sums.totals());
  }

  /// Loss of a micro-batch, summed over its tokens; what the backward pass needs is kept.
  LossSum forward(const MicroBatch& batch)
  {
    const EmbeddingTensors& embedding = weights.embedding;
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), work.output, embedding, batch);
    forward_branches(0, model.branches.size(), batch);
    run.charge_forward(head_unit);
    return model.head.forward(kept.head, weights.head, batch);
  }

  /// Adds the gradient of that loss to the sums of this rank's shards.
  void backward(const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors& p_head = weights.head;
    // NEW: a unit's gradients are allocated when the pass comes to it. Those of the token embedding, which the head adds to
    // first, live until the lookup at the other end has added its own.
    const EmbeddingTensors d_embedding = embedding_tensors(gradients.make_slot(0));
    const HeadTensors d_head = head_tensors(gradients.make_slot(head_unit), gradients.second_of(d_embedding.token));
    model.head.apply_backward(output, d_head, kept.head, p_head, batch);
    run.stream->zero(dx);
    model.head.normalise_backward(dx, d_head, output, kept.head, p_head, batch);
    unit_done(head_unit, batch);

    for (std::size_t i = model.branches.size(); i-- > 0;) {
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors d = branch_tensors(gradients.make_slot(branch.unit()));
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      unit_done(branch.unit(), batch);
    }
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
  /// Forward pass of branches [first, last).
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

  /// A unit's gradients of this micro-batch are complete: the bucket that it fills goes to the owners of its shards.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    run.charge_backward(unit);
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      if (buckets[bucket].units.first != unit) continue;
      collect(batch);  // the one before: no more than two neighbours are alive
      const std::vector<Tensor> ready = gradients.of(bucket);
      pending = queue.start(fmt::format("bucket of unit {}", unit), [ready](Group& group) {
        reduce_scatter_sum(ready[0], group);
        if (ready.size() > 1) all_reduce_sum(ready[1], group);  // the tied embedding's second
      });
      in_flight = bucket;
    }
  }

  /// NEW: waits for the bucket in flight, adds this rank's shard of it to the sums, and frees it.
  void collect(const MicroBatch& batch)
  {
    if (!in_flight) return;
    const auto span = run.time.span(Work::exposed, "summing gradients");
    // BEGIN EXERCISE 05.1 points=10 "Freeing buckets: wait for the bucket in flight. What has arrived of this rank's "
    //     "shard is added to the sums, as what the sequences of all ranks' micro-batches give. Then the bucket is freed, and "
    //     "none is in flight."
    const std::size_t bucket = *in_flight;
    pending.wait();
    sums.add(bucket, of_all_ranks(batch.rows.sequences, world), gradients.of(bucket, own[bucket]));
    gradients.free(bucket);
    in_flight.reset();
    // END EXERCISE
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  /// The update stands between the two halves of the all-reduce, so each rank updates only its shards.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& shard_gradients)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(squared_norm(*run.kernels, shard_gradients, world)) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(step, loss.mean(), norm, *run.kernels, adamw.shards(), shard_gradients, world);
    adamw.step(*run.kernels, shard_gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    return {loss.mean(), norm, learning_rate};
  }

  /// The second half. What is gathered are no longer gradients but updated parameters.
  void gather_parameters()
  {
    const auto counted = run.count("world");
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    for (const Bucket& bucket : buckets) all_gather(parameters.tensor().slice(bucket.elements), world);
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = Zero2Options;
  static constexpr const char *name = "05_zero2", *title = "Sharded gradients (ZeRO-2)";

  Zero2(Run& r, const Options& o) : run(r), options(o) {}

  /// Of each bucket this rank's shard.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round(*run.kernels);
    gather_parameters();
  }
  /// Compared by the frame.
  Tensor replicated() const { return parameters.tensor(); }
  std::string describe() const
  {
    return fmt::format("collectives by {}; {} buckets", describe_algorithm(world), buckets.size());
  }
  void report(Report&) const {}

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                                                 // device, data, ledgers
  const Options& options;                                                                   // what was asked for
  Group world{"world", Communicator::world(), run.group_setup()};                           // all N ranks
  ParameterTable table{run.config};                                                         // of the flat vectors
  std::int64_t head_unit = unit_count(run.config) - 1;                                      // of the table
  Model model{{run.config, run.kernels.get(), {}, run.options.dropout, run.options.seed}};  // the chain
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};  // (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());                            // views of them
  std::vector<Bucket> buckets = make_buckets(table, options.gradients, options.bucket.value);  // in backward order
  CommunicationQueue queue{world, run.time};                                            // sends them meanwhile
  Pending pending;                                                                      // the bucket in flight
  std::optional<std::size_t> in_flight;                                                 // which one that is
  std::vector<BucketShard> bucket_shards = make_bucket_shards(buckets, world.ranks());  // who owns which elements
  std::vector<Range> own = shards_of(world.rank(), bucket_shards);  // of each bucket this rank's shard
  ShardedAdamW adamw{run.memory,       *run.stream, table, own, slices(parameters.tensor(), own),
                     run.options.adamw};                                               // (P/N)
  GradientLayout layout = sums_of(step_plan(options));                                 // what is summed
  ShardSums sums{run.arithmetic, *run.kernels, *run.stream, run.memory, layout, own};  // (P/N) gradients
  BucketGradients gradients{run.memory, *run.stream, table, buckets, layout};  // of the buckets that are alive
  Workspace work{run.memory, run.config, run.shape};                           // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // from a forward pass to its backward pass
  std::optional<Generator> generator;                         // of a sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Zero2>(argc, argv);
}
