// Lesson 03: Data parallelism (DDP)
//
// Builds on:    lesson 01 (a single device)
// New idea:     every rank has the whole model and computes a share of the global batch; the gradients are summed over the
//               ranks, so that all make the same update. A unit's gradients are final while the backward pass goes on: they
//               travel in buckets meanwhile, and only what is left at the end is waited for.
// Memory:       16 P bytes of model state on every rank (bf16: 18 P or 16 P), as in lesson 01, the activations of a share,
//               and message buffers
// Traffic:      8 P (N-1)/N bytes sent per rank and step (f32: 4 P, twice (N-1)/N of them), half of it with
//               --gradients=bf16; exact arithmetic sums the tied embedding's two gradients apart, V C more
// Paper:        Li et al. 2020 (PyTorch DDP); Patarasuk and Yuan 2009 (ring all-reduce)
//
// Sample runs:  build/lessons/03_ddp --steps=3
//               mpirun -np 2 build/lessons/03_ddp --steps=5 --strategy=flat
//               mpirun -np 3 build/lessons/03_ddp --steps=3 --global-batch=12 --micro-batch=2 --strategy=per-tensor
//               mpirun -np 4 build/lessons/03_ddp --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//               mpirun -np 4 build/lessons/03_ddp --steps=10 --bucket=100kB --compare=10
//               mpirun -np 4 build/lessons/03_ddp --steps=3 --precision=bf16 --gradients=bf16
//               mpirun -np 4 build/lessons/03_ddp --steps=3 --link=50us,1GB/s --flops=20GFLOP/s
//               rm -f build/ddp.h5; mpirun -np 4 build/lessons/03_ddp --steps=3 --checkpoint=build/ddp.h5
//               mpirun -np 2 build/lessons/03_ddp --steps=5 --checkpoint=build/ddp.h5 --resume
//               mpirun -np 4 build/lessons/03_ddp --model=gpt2-xl --dry-run
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
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/03_ddp/costs.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// What this rank holds: a whole model.
/// The frame (lessons/frame/train.hpp) does what is no part of a step.
class Ddp {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // NEW: each rank computes its share of the sequences, in micro-batches.
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
      // NEW: the sums over the ranks' shares are those over the global batch, so all ranks make the same update.
      if (options.strategy == Strategy::overlapped)
        wait_for_buckets();
      else
        sum_after_backward();
    }
    all_reduce_sum(loss, world);
    return update(step, loss, gradients->total());
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

  /// NEW: the naive sum. When the last backward pass is over, all ranks add up piece after piece, and none computes meanwhile.
  void sum_after_backward()
  {
    const auto span = run.time.span(Work::exposed, "summing gradients");
    // BEGIN EXERCISE 03.1 points=10 "Sums over the ranks: after this call the gradients are the sums over all ranks. "
    //     "GradientSum::sums() gives this rank's: all elements, and where the tied embedding's second gradient is kept "
    //     "apart, that too. Add them up over the ranks, one of the pieces after the other."
    const std::vector<Tensor> sums = gradients->sums();
    for (const Range& piece : pieces_of(table, options.gradients, options.strategy, options.bucket.value))
      all_reduce_sum(sums[0].slice(piece), world);
    if (sums.size() > 1) all_reduce_sum(sums[1], world);
    // END EXERCISE
  }

  /// A unit's gradients of this micro-batch are complete.
  /// NEW: the overlapped sum. A bucket travels as soon as its last unit is done, while the backward pass computes the next.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    run.charge_backward(unit);
    if (options.strategy != Strategy::overlapped) return;
    // BEGIN EXERCISE 03.3 points=10 "Overlap, and accumulation without extra traffic: in the last micro-batch of this "
    //     "rank's share, and in no other, the bucket whose first unit is the one given is complete: finish its elements, "
    //     "start on the queue the sums over the ranks of the tensors that this gives, and keep what is to be waited for."
    const bool last = batch.rows.sequences.end() == share.end();  // before that the sums are not final
    if (!last) return;
    for (const Bucket& bucket : buckets) {
      if (bucket.units.first != unit) continue;
      const std::vector<Tensor> ready = gradients->finish(bucket.elements);
      pending.push_back(queue.start(fmt::format("bucket of unit {}", unit), [ready](Group& group) {
        for (const Tensor& sum : ready) all_reduce_sum(sum, group);
      }));
    }
    // END EXERCISE
  }

  /// NEW: what is left of the communication when the backward pass is over is exposed.
  void wait_for_buckets()
  {
    const auto span = run.time.span(Work::exposed, "summing gradients");
    for (Pending& bucket : pending) bucket.wait();
    pending.clear();
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const LossSum& loss, const Tensor& gradient)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(run.kernels->squared_norm(gradient).value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(step, loss.mean(), norm, *run.kernels, table, gradient, master);
    adamw.step(*run.kernels, parameters.tensor(), gradient, learning_rate,
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
  /// Each rank holds a copy of the model.
  int replica() const { return world.rank(); }
  auto& optimizer() { return adamw; }
  /// All ranks begin with the parameters of rank 0.
  void after_load()
  {
    broadcast(master, 0, world);
    adamw.round(*run.kernels, parameters.tensor());
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
  CommunicationQueue queue{world, run.time};  // sends them meanwhile
  std::vector<Pending> pending;               // buckets on their way
  AdamW adamw{run.memory,     *run.stream,      table, {0, table.elements()},
              run.shape.type, run.options.adamw};             // (P) moments
  Tensor master = adamw.master(parameters.tensor());          // (P) f32: what is updated
  Workspace work{run.memory, run.config, run.shape};          // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // from a forward pass to its backward pass
  std::optional<Generator> generator;                         // of a sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Ddp>(argc, argv);
}
