// Lesson 06: sharded parameters (ZeRO-3, FSDP)
//
// Builds on:    lesson 05 (ZeRO-2)
// New idea:     Each rank stores 1/N of every FSDP unit. A unit is all-gathered just before it is used, in the
//               forward and again in the backward pass, and freed right after. The next unit is prefetched
//               meanwhile. Nothing is gathered after the update: the next forward pass gathers the new values.
// Memory:       16 P / N bytes of model state per rank (f32: parameter 4, gradient 4, two moments 8); bf16:
//               18 P / N, with --gradients=bf16 16 P / N; plus the units that are gathered at the moment
// Traffic:      about 3 M 4 P (N-1)/N bytes sent per rank and step of M micro-batches: parameters twice, gradients
//               once; --dry-run shows how often each unit is gathered
// Paper:        Rajbhandari et al. 2020 (ZeRO), sections 5.3 and 7.2; Zhao et al. 2023 (PyTorch FSDP)
//
// Sample runs:  mpirun -np 2 build/lessons/06_zero3 --steps=5
//               mpirun -np 4 build/lessons/06_zero3 --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//             * mpirun -np 4 build/lessons/06_zero3 --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 05, whatever the number of ranks; 1/N of its parameters.
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
#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"
#include "lessons/parallel/zero/sharded_parameters.hpp"
#include "lessons/parallel/zero/zero3_costs.hpp"

namespace rankwise {

/// What this rank holds: 1/N of the parameters, of the gradients and of the optimizer.
/// The frame (lessons/frame/train.hpp) does everything outside of a step.
class Zero3 {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Each rank computes its sequences of the global batch in M = G / (N B) micro-batches. Gradients are summed
    // over the ranks after each: in micro-batch m the N ranks take N B neighbouring sequences, B each.
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
    // The sums of this rank's shards, (P/N), are all that is left of the gradients.
    return update(step, loss, sums.totals());
  }

  /// Loss of a micro-batch, summed over its tokens. Every gather needs all ranks, so all call it equally often.
  LossSum forward(const MicroBatch& batch)
  {
    // NEW: announce the order in which units will be used, in training to the end of the backward pass, so that
    // each FSDP unit can be prefetched while the one before it is used.
    parameters.begin(uses_of(options, batch.training));
    // NEW: gather, use, free. use() frees the units that are no longer needed, starts the next all-gathers, and
    // waits for this one: (N-1)/N of a unit's bytes. The embedding: token plus position, (B T, C).
    const EmbeddingTensors embedding = embedding_tensors(parameters.use(0));
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), work.output, embedding, batch);
    // Attention and MLP in turn, 2 L branches. Each adds its output to the residual stream.
    forward_branches(0, model.branches.size(), batch);
    // The head: logits, (B T, V), and the cross-entropy of the next tokens.
    parameters.use(head_unit);
    run.charge_forward(head_unit);
    const LossSum loss = model.head.forward(kept.head, head_parameters(), batch);
    // In validation no backward pass follows, and the last units are freed here.
    if (!batch.training) parameters.end();
    return loss;
  }

  /// Adds the gradient of that loss to the sums of this rank's shards.
  void backward(const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors p_head = head_parameters();  // still gathered from the end of the forward pass
    // Gradients are allocated, all zero, when the backward pass reaches their unit. The token embedding is tied to
    // the head: its gradients are allocated first and live until the lookup has added to them.
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
      // NEW: the parameters are all-gathered a second time: they were freed after the forward pass.
      const BranchTensors p = branch_tensors(parameters.use(branch.unit()));
      const BranchTensors d = branch_tensors(gradients.allocate(branch.unit()));
      // The branch's parts in reverse order: residual add, matrices, norm. dx becomes the input's gradient.
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      unit_done(branch.unit(), batch);
    }
    // NEW: the lookup's backward pass adds to gradients and reads no parameter, so the embedding is not gathered
    // again. end() frees the last units; collect() waits for the last bucket.
    parameters.end();
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

  /// The token that follows a text. All ranks compute the same one, since each gather needs all of them.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!pass) pass.emplace(run.memory, *run.stream, model, run.shape.type, run.batch.sequence);
    pass->begin(text);
    parameters.begin(uses_of(options, false));
    pass->embedding(embedding_tensors(parameters.use(0)));
    for (std::size_t i = 0; i < model.branches.size(); ++i)
      pass->branch(i, branch_tensors(parameters.use(model.branches[i].unit())));
    parameters.use(head_unit);
    const Token token = pick_token(pass->head(head_parameters()), run.options.sampling, number);
    parameters.end();
    return token;
  }

 private:
  /// Forward pass of branches [first, last): each computes x + branch(norm(x)), (B T, C).
  void forward_branches(std::size_t first, std::size_t last, const MicroBatch& batch)
  {
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors p = branch_tensors(parameters.use(branch.unit()));
      branch.normalise(kept.branches[i], p);
      branch.apply(work.output, kept.branches[i], p, batch);
      branch.add(kept.stream(i + 1), kept.branches[i], work.output, p, batch);
      run.charge_forward(branch.unit());
    }
  }

  /// Parameters of the head while it is in use. Its matrix is the token embedding, (V, C).
  HeadTensors head_parameters() const
  {
    return head_tensors(parameters.of(head_unit), embedding_tensors(parameters.of(0)).token);
  }

  /// A unit's gradients of this micro-batch are complete: reduce-scatters the bucket that it completes, if any.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    run.charge_backward(unit);
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      // An FSDP unit's gradients are a bucket. The backward pass reaches its first table unit last.
      if (buckets[bucket].units.first != unit) continue;
      // The previous bucket is freed first, so that at most two neighbouring buckets are alive.
      collect(batch);
      // Reduce-scatter the bucket while the backward pass continues: this rank receives the sum of its own shard.
      const std::vector<Tensor> ready = gradients.of(bucket);
      pending = queue.start(fmt::format("bucket of unit {}", unit),
                            [this, bucket, ready](Group& group) { sums.reduce_scatter(bucket, ready, group); });
      in_flight = bucket;
    }
  }

  /// Waits for the bucket in flight, adds this rank's shard of it to the sums, and frees the bucket.
  void collect(const MicroBatch& batch)
  {
    if (!in_flight) return;
    // Waiting time is exposed communication: the reduce-scatter took longer than the computation beside it.
    const auto span = run.time.span(Work::exposed, "summing gradients");
    // BEGIN TWIN 05.1
    const std::size_t bucket = *in_flight;
    pending.wait();
    // The shard now holds the gradient of N B sequences: it is added to the sum over the micro-batches so far.
    sums.add(bucket, of_all_ranks(batch.rows.sequences, world), gradients.of(bucket, own[bucket]));
    gradients.free(bucket);
    in_flight.reset();
    // END TWIN
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
    // Each rank updates its shards, (P/N). NEW: no all-gather of P parameters follows: the next forward pass
    // gathers what it uses. Only replicated parameters (--persist) are made the same on all ranks here.
    adamw.step(run.kernels, shard_gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    gather_parameters();
    return {loss.mean(), norm, learning_rate};
    // END TWIN
  }

  /// NEW: all-gathers the replicated parameters (--persist), of which each rank has updated its shard.
  void gather_parameters()
  {
    if (parameters.replicated().empty()) return;
    const auto counted = run.count("world");
    // Nothing is left to compute in this step, so this communication is exposed.
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    all_gather(parameters.replicated(), world);
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = Zero3Options;
  static constexpr const char *name = "06_zero3", *title = "Sharded parameters (ZeRO-3, FSDP)";

  Zero3(Run& r, const Options& o) : run(r), options(o) {}

  /// This rank's shard of each unit, with its moments.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round(run.kernels);
    gather_parameters();
  }
  /// Parameters that must be the same on all ranks; the frame compares them.
  Tensor replicated() const { return parameters.replicated(); }
  std::string describe() const
  {
    return fmt::format("collectives by {}; {} units", describe_algorithm(world), buckets.size());
  }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                        // device, data, ledgers
  const Options& options;                                          // as checked by the frame
  Group world{"world", Communicator::world(), run.group_setup()};  // all N ranks
  ParameterTable table = step_plan(options).table;                 // layout of a flat vector, (P)
  std::int64_t head_unit = unit_count(run.config) - 1;             // last unit of the table
  Model model{{run.config, run.kernels, {}, run.options.dropout, run.options.seed}};  // the layers
  std::vector<FsdpUnit> buckets = step_plan(options).buckets;  // FSDP units, in backward order  <- NEW
  CommunicationQueue queue{world, run.time};                   // gathers and sends while this rank computes
  Pending pending;                                             // reduce-scatter of one bucket
  std::optional<std::size_t> in_flight;                        // number of that bucket
  std::vector<BucketShard> bucket_shards = make_bucket_shards(buckets, world.ranks());  // owner of each element
  std::vector<Range> own = shards_of(world.rank(), bucket_shards);              // this rank's shard of each unit
  ShardedParameters parameters{run.memory, *run.stream, queue,          table,  // (P/N), and gathered units  <- NEW
                               buckets,    own,         run.shape.type, options.gathering};
  ShardedAdamW adamw{run.memory, *run.stream, table, own, parameters.own(), run.options.adamw};  // (P/N) moments
  ShardSums sums{run.kernels, *run.stream, run.memory, step_plan(options), own, world.ranks()};  // (P/N)
  BucketGradients gradients{run.memory, *run.stream, table, buckets,
                            sums_of(step_plan(options))};     // buckets that are alive
  Workspace work{run.memory, run.config, run.shape};          // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // saved for the backward pass
  std::optional<GeneratingPass> pass;                         // makes samples
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Zero3>(argc, argv);
}
