// Lesson 06: sharded parameters (ZeRO-3, FSDP)
//
// Builds on:    lesson 05 (ZeRO-2)
// New idea:     a pass computes with one unit after the other, so a rank needs the parameters of the others only then: it
//               keeps 1/N of each unit, gathers a unit shortly before it is used, forward and backward, and frees it.
//               Nothing is gathered after the update: the next pass gathers what is updated.
// Memory:       16 P / N bytes of model state on each rank (f32: parameter 4, gradient 4, two moments 8); bf16: 18 P / N,
//               with --gradients=bf16 16 P / N; and the units that a pass is at
// Traffic:      about 3 M 4 P (N-1)/N bytes sent per rank and step of M passes: parameters twice, gradients once; --dry-run
//               tells what is gathered how often
// Paper:        Rajbhandari et al. 2020 (ZeRO), sections 5.3 and 7.2; Zhao et al. 2023 (PyTorch FSDP)
//
// Sample runs:  build/lessons/06_zero3 --steps=3
//               mpirun -np 2 build/lessons/06_zero3 --steps=5
//               mpirun -np 3 build/lessons/06_zero3 --steps=3 --global-batch=12 --micro-batch=2 --unit=branch --prefetch=0
//               mpirun -np 4 build/lessons/06_zero3 --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//               mpirun -np 4 build/lessons/06_zero3 --steps=10 --reshard=after-backward --compare=10
//               mpirun -np 4 build/lessons/06_zero3 --steps=3 --persist=4096 --recompute=block --sample=20
//               mpirun -np 4 build/lessons/06_zero3 --steps=3 --precision=bf16 --gradients=bf16
//               rm -f build/zero3.h5; mpirun -np 4 build/lessons/06_zero3 --steps=3 --checkpoint=build/zero3.h5
//               mpirun -np 2 build/lessons/06_zero3 --steps=5 --checkpoint=build/zero3.h5 --resume
//               mpirun -np 4 build/lessons/06_zero3 --model=gpt2-large --persist=100000 --dry-run
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
#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/04_zero1/sharded_adamw.hpp"
#include "lessons/04_zero1/sharded_norm.hpp"
#include "lessons/05_zero2/bucket_gradients.hpp"
#include "lessons/05_zero2/shard_sums.hpp"
#include "lessons/06_zero3/costs.hpp"
#include "lessons/06_zero3/sharded_parameters.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// What this rank holds: 1/N of parameters, gradients and optimizer. The frame (lessons/frame/train.hpp) does what is no part
/// of a step.
class Zero3 {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Gradients are summed over the ranks after each micro-batch, so the ranks' micro-batches are neighbours.
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

  /// Loss of a micro-batch, summed over its tokens. All ranks gather what it uses, so all call it equally often.
  LossSum forward(const MicroBatch& batch)
  {
    // NEW: the pass announces which units of the table it will use, so that each FSDP unit can be gathered ahead of its use.
    parameters.begin(uses_of(options, batch.training));
    // NEW: use() frees what is not needed any more, and waits until the parameters asked for have been gathered.
    const EmbeddingTensors embedding = embedding_tensors(parameters.use(0));
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), work.output, embedding, batch);
    forward_branches(0, model.branches.size(), batch);
    parameters.use(head_unit);
    run.charge_forward(head_unit);
    const LossSum loss = model.head.forward(kept.head, head_parameters(), batch);
    if (!batch.training) parameters.end();
    return loss;
  }

  /// Adds the gradient of that loss to the sums of this rank's shards.
  void backward(const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors p_head = head_parameters();  // of the forward pass's last use
    // A unit's gradients are allocated when the pass comes to it. Those of the token embedding, which the head adds to
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
      const BranchTensors p = branch_tensors(parameters.use(branch.unit()));  // NEW: gathered for the second time
      const BranchTensors d = branch_tensors(gradients.make_slot(branch.unit()));
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      unit_done(branch.unit(), batch);
    }
    // NEW: the backward pass of a lookup reads no parameter, so the embedding is not gathered again.
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

  /// The token that follows a text; all ranks compute the same, and gather for it.
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
  /// Forward pass of branches [first, last).
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

  /// Parameters of the head, when the pass is there: its matrix is the token embedding.
  HeadTensors head_parameters() const
  {
    return head_tensors(parameters.of(head_unit), embedding_tensors(parameters.of(0)).token);
  }

  /// A unit's gradients of this micro-batch are complete: the bucket that it fills goes to the owners of its shards.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    run.charge_backward(unit);
    for (std::size_t bucket = 0; bucket < units.size(); ++bucket) {
      if (units[bucket].units.first != unit) continue;
      collect(batch);  // the one before: no more than two neighbours are alive
      const std::vector<Tensor> ready = gradients.of(bucket);
      pending = queue.start(fmt::format("bucket of unit {}", unit), [ready](Group& group) {
        reduce_scatter_sum(ready[0], group);
        if (ready.size() > 1) all_reduce_sum(ready[1], group);  // the tied embedding's second
      });
      in_flight = bucket;
    }
  }

  /// Waits for the bucket in flight, adds this rank's shard of it to the sums, and frees it.
  void collect(const MicroBatch& batch)
  {
    if (!in_flight) return;
    const auto span = run.time.span(Work::exposed, "summing gradients");
    const std::size_t bucket = *in_flight;
    pending.wait();
    sums.add(bucket, of_all_ranks(batch.rows.sequences, world), gradients.of(bucket, own[bucket]));
    gradients.free(bucket);
    in_flight.reset();
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  /// NEW: nothing is gathered after the update: the next forward pass gathers what it uses.
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

  /// NEW: of parameters that stay replicated (--persist) each rank has updated its shard.
  void gather_parameters()
  {
    if (parameters.replicated().empty()) return;
    const auto counted = run.count("world");
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    // BEGIN EXERCISE 06.4 points=5 "What is replicated: those tensors are whole on every rank, one behind the other, but each "
    //     "rank has new values of its own shard of them only. Give all ranks all of them."
    all_gather(parameters.replicated(), world);
    // END EXERCISE
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = Zero3Options;
  static constexpr const char *name = "06_zero3", *title = "Sharded parameters (ZeRO-3, FSDP)";

  Zero3(Run& r, const Options& o) : run(r), options(o) {}

  /// Of each bucket this rank's shard.
  HeldShards shards()
  {
    // BEGIN EXERCISE 06.3 points=10 "Save on 4, load on 2: a checkpoint has whole tensors and does not say who wrote which part "
    //     "of them. Name what this rank owns now, the moments too: it is read when a run is resumed, and written when it is "
    //     "saved."
    return {adamw.shards(), *run.stream};
    // END EXERCISE
  }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round(*run.kernels);
    gather_parameters();
  }
  /// Compared by the frame.
  Tensor replicated() const { return parameters.replicated(); }
  std::string describe() const
  {
    return fmt::format("collectives by {}; {} units", describe_algorithm(world), units.size());
  }
  void report(Report&) const {}

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                                                 // device, data, ledgers
  const Options& options;                                                                   // what was asked for
  Group world{"world", Communicator::world(), run.group_setup()};                           // all N ranks
  ParameterTable table = step_plan(options).table;                                          // of the flat vectors
  std::int64_t head_unit = unit_count(run.config) - 1;                                      // of the table
  Model model{{run.config, run.kernels.get(), {}, run.options.dropout, run.options.seed}};  // the chain
  std::vector<FsdpUnit> units = step_plan(options).buckets;  // FSDP units, in backward order
  CommunicationQueue queue{world, run.time};                 // gathers and sends meanwhile
  std::vector<BucketShard> bucket_shards = make_bucket_shards(units, world.ranks());  // who owns which elements
  std::vector<Range> own = shards_of(world.rank(), bucket_shards);  // of each unit this rank's shard
  ShardedParameters parameters{run.memory, *run.stream, queue,          table,
                               units,      own,         run.shape.type, options.gathering};
  ShardedAdamW adamw{run.memory, *run.stream, table, own, parameters.own(), run.options.adamw};  // (P/N)
  Pending pending;                                                                     // the bucket in flight
  std::optional<std::size_t> in_flight;                                                // which one that is
  GradientLayout layout = sums_of(step_plan(options));                                 // what is summed
  ShardSums sums{run.arithmetic, *run.kernels, *run.stream, run.memory, layout, own};  // (P/N) gradients
  BucketGradients gradients{run.memory, *run.stream, table, units, layout};  // of the buckets that are alive
  Workspace work{run.memory, run.config, run.shape};                         // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // from a forward pass to its backward pass
  std::optional<GeneratingPass> pass;                         // of a sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Zero3>(argc, argv);
}
