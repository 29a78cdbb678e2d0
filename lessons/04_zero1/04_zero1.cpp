// Lesson 04: sharded optimizer (ZeRO-1)
//
// Builds on:    lesson 03 (DDP)
// New idea:     AdamW's moments are needed only where parameters are updated, so each rank keeps and updates 1/N of them.
//               An all-reduce is a reduce-scatter and an all-gather: the update now stands between the two, and what is
//               gathered are no longer gradients but parameters.
// Memory:       8 P + 8 P / N bytes of model state on each rank (f32: parameter 4, gradient 4, two moments 8); bf16: 6 P +
//               12 P / N, with --gradients=bf16 4 P + 12 P / N
// Traffic:      8 P (N-1)/N bytes sent per rank and step, the same as lesson 03
// Paper:        Rajbhandari et al. 2020 (ZeRO), section 5.1
//
// Sample runs:  build/lessons/04_zero1 --steps=3
//               mpirun -np 2 build/lessons/04_zero1 --steps=5
//               mpirun -np 3 build/lessons/04_zero1 --steps=3 --global-batch=12 --micro-batch=2
//               mpirun -np 4 build/lessons/04_zero1 --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//               mpirun -np 4 build/lessons/04_zero1 --steps=10 --bucket=100kB --compare=10
//               mpirun -np 4 build/lessons/04_zero1 --steps=3 --precision=bf16 --gradients=bf16
//               rm -f build/zero1.h5; mpirun -np 4 build/lessons/04_zero1 --steps=3 --checkpoint=build/zero1.h5
//               mpirun -np 2 build/lessons/04_zero1 --steps=5 --checkpoint=build/zero1.h5 --resume
//               mpirun -np 4 build/lessons/04_zero1 --model=gpt2-xl --dry-run
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
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/04_zero1/costs.hpp"
#include "lessons/04_zero1/sharded_adamw.hpp"
#include "lessons/04_zero1/sharded_norm.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// What this rank holds: a whole model, and 1/N of the optimizer.
/// The frame (lessons/frame/train.hpp) does what is no part of a step.
class Zero1 {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Each rank computes its share of the sequences, in micro-batches.
    LossSum loss;
    gradients->clear();
    {
      const auto counted = run.count("world");
      for (std::int64_t first = share.first; first < share.end(); first += run.batch.micro_batch) {
        const Range sequences{first, run.batch.micro_batch};
        const MicroBatch batch = run.load(kept, sequences, step);
        const GradientTensors d = gradients->begin(sequences);
        loss += forward(batch);
        backward(model_tensors(table, d.flat, d.tied), batch);
        gradients->end(sequences);
      }
      wait_for_buckets();
    }
    all_reduce_sum(loss, world);
    // NEW: of these sums only the shards of this rank are complete.
    return update(step, loss, slices(gradients->total(), own));
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

  /// Adds the gradient of that loss to @p gradient.
  void backward(const ModelTensors& gradient, const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors &p_head = weights.head, &d_head = gradient.head;
    model.head.apply_backward(output, d_head, kept.head, p_head, batch);
    run.stream->zero(dx);
    model.head.normalise_backward(dx, d_head, output, kept.head, p_head, batch);
    unit_done(head_unit, batch);

    for (std::size_t i = model.branches.size(); i-- > 0;) {
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors& d = gradient.branches[i];
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      unit_done(branch.unit(), batch);
    }
    model.embedding.backward(gradient.embedding, dx, batch);
    unit_done(0, batch);
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

  /// A unit's gradients of this micro-batch are complete.
  /// NEW: the first half of an all-reduce. A reduce-scatter leaves each rank with the sums of its own shard of the bucket.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    run.charge_backward(unit);
    const bool last = batch.rows.sequences.end() == share.end();  // before that the sums are not final
    if (!last) return;
    for (const Bucket& bucket : buckets) {
      if (bucket.units.first != unit) continue;
      const std::vector<Tensor> ready = gradients->finish(bucket.elements);
      pending.push_back(queue.start(fmt::format("bucket of unit {}", unit), [ready](Group& group) {
        reduce_scatter_sum(ready[0], group);
        if (ready.size() > 1) all_reduce_sum(ready[1], group);  // the tied embedding's second
      }));
    }
  }

  /// What is left of the communication when the backward pass is over is exposed.
  void wait_for_buckets()
  {
    const auto span = run.time.span(Work::exposed, "summing gradients");
    for (Pending& bucket : pending) bucket.wait();
    pending.clear();
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  /// NEW: the update stands between the two halves of the all-reduce, so each rank updates only its shards.
  StepReport update(std::int64_t step, const LossSum& loss, const std::vector<Tensor>& shard_gradients)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(squared_norm(*run.kernels, shard_gradients, world)) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(step, loss.mean(), norm, *run.kernels, adamw.shards(), shard_gradients, world);
    // BEGIN EXERCISE 04.3 points=10 "The update between the halves of an all-reduce: each rank updates what it owns, from "
    //     "the gradients of its shards, with the learning rate and clipping as before; then all ranks have all parameters."
    adamw.step(*run.kernels, shard_gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    // END EXERCISE
    return {loss.mean(), norm, learning_rate};
  }

  /// NEW: the second half. What is gathered are no longer gradients but updated parameters.
  void gather_parameters()
  {
    const auto counted = run.count("world");
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    for (const Bucket& bucket : buckets) all_gather(parameters.tensor().slice(bucket.elements), world);
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = Zero1Options;
  static constexpr const char *name = "04_zero1", *title = "Sharded optimizer (ZeRO-1)";

  Zero1(Run& r, const Options& o) : run(r), options(o) {}

  /// NEW: of each bucket this rank's shard.
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
  Range share = Partition(run.batch.global_batch, world.ranks()).shard(world.rank());       // of the global batch
  ParameterTable table{run.config};                                                         // of the flat vectors
  std::int64_t head_unit = unit_count(run.config) - 1;                                      // of the table
  Model model{{run.config, run.kernels.get(), {}, run.options.dropout, run.options.seed}};  // the chain
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};  // (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());           // views of them
  std::unique_ptr<GradientSum> gradients = run.arithmetic.make_gradient_sum(  // (P)
      *run.kernels, *run.stream, world.often_reduced(), gradient_layout(table, options.gradients));
  std::vector<Bucket> buckets = make_buckets(table, options.gradients, options.bucket.value);  // in backward order
  CommunicationQueue queue{world, run.time};                                            // sends them meanwhile
  std::vector<Pending> pending;                                                         // buckets on their way
  std::vector<BucketShard> bucket_shards = make_bucket_shards(buckets, world.ranks());  // who owns which elements
  std::vector<Range> own = shards_of(world.rank(), bucket_shards);  // of each bucket this rank's shard
  ShardedAdamW adamw{run.memory,       *run.stream, table, own, slices(parameters.tensor(), own),
                     run.options.adamw};                      // (P/N)
  Workspace work{run.memory, run.config, run.shape};          // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // from a forward pass to its backward pass
  std::optional<Generator> generator;                         // of a sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Zero1>(argc, argv);
}
