// Lesson 07: offload to host memory and to disk (ZeRO-Offload, ZeRO-Infinity)
//
// Builds on:    lesson 06 (ZeRO-3)
// New idea:     between its uses model state need not be on the device: what a rank keeps of it lies in memory of the host or
//               in a file. Parameters come for each unit that is gathered; sums of gradients are added up where they lie;
//               AdamW runs where its states are, block by block: one block comes, one is used, one goes.
// Memory:       of the device, with --offload=all, none of the 16 P / N bytes of model state: only the units that a pass is
//               at; they are in the tier below, and room for a few blocks
// Traffic:      that of lesson 06; and over the link with the host about 12 P / N bytes a rank and step of one pass: parameters
//               down for each gather (8), gradients up (4); with a disk under it 24 P / N are read and 16 P / N written,
//               without clipping 20 and 12: each block is updated when its sum of gradients comes, during the backward pass
// Paper:        Ren et al. 2021 (ZeRO-Offload), sections 3 to 5; Rajbhandari et al. 2021 (ZeRO-Infinity), sections 5 and 6
//
// Sample runs:  build/lessons/07_offload --steps=3
//               mpirun -np 2 build/lessons/07_offload --steps=5 --offload=optimizer
//               mpirun -np 2 build/lessons/07_offload --steps=5 --tier=disk:build
//               mpirun -np 2 build/lessons/07_offload --steps=5 --tier=disk:build --clip=0
//               mpirun -np 4 build/lessons/07_offload --steps=3 --tier=disk:build --arithmetic=exact --micro-batch=2
//               mpirun -np 2 build/lessons/07_offload --steps=3 --recompute=block --micro-batch=1 --memory-limit=2MB
//               mpirun -np 3 build/lessons/07_offload --steps=3 --global-batch=12 --precision=bf16 --offload=gradients
//               mpirun -np 4 build/lessons/07_offload --steps=10 --persist=4096 --compare=10 --sample=20
//               rm -f build/offload.h5; mpirun -np 4 build/lessons/07_offload --steps=3 --checkpoint=build/offload.h5
//               mpirun -np 2 build/lessons/07_offload --steps=5 --tier=disk:build --checkpoint=build/offload.h5 --resume
//               mpirun -np 2 build/lessons/07_offload --model=gpt2-xl --recompute=block --micro-batch=1 --dry-run
//             * mpirun -np 4 build/lessons/07_offload --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 06, whatever lies where; the limits of a small device, which lesson 06 refuses.
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
#include "lessons/05_zero2/bucket_gradients.hpp"
#include "lessons/07_offload/costs.hpp"
#include "lessons/07_offload/offload_report.hpp"
#include "lessons/07_offload/offloaded_parameters.hpp"
#include "lessons/07_offload/tiered_adamw.hpp"
#include "lessons/07_offload/tiered_sums.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// What this rank holds: 1/N of parameters, gradients and optimizer, on the device, on the host or on disk. The frame
/// (lessons/frame/train.hpp) does what is no part of a step.
class ZeroOffload {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    tiers.begin_step();
    const std::vector<Range> micro_batches = micro_batches_of_step(run.batch, world);
    LossSum loss;
    {
      const auto counted = run.count("world");
      for (const Range& sequences : micro_batches) {
        const MicroBatch batch = run.load(kept, sequences, step);
        loss += forward(batch);
        // NEW: without clipping an update needs no norm, so it runs during the last backward pass.
        if (plan.updates_early() && sequences == micro_batches.back()) begin_update(step, loss);
        backward(batch);
      }
    }
    if (!plan.updates_early()) all_reduce_sum(loss, world);
    return update(step, loss, sums.totals());
  }

  /// Loss of a micro-batch, summed over its tokens. All ranks gather what it uses, so all call it equally often.
  LossSum forward(const MicroBatch& batch)
  {
    parameters.begin(uses_of(options, batch.training));
    // NEW: a unit's gather begins with this rank's own shard of it, which comes block by block from where it lies.
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
      const BranchTensors p = branch_tensors(parameters.use(branch.unit()));
      const BranchTensors d = branch_tensors(gradients.make_slot(branch.unit()));
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      unit_done(branch.unit(), batch);
    }
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
      arriving = sums.expect(bucket, gradients.of(bucket, plan.own[bucket]));
      pending = queue.start(fmt::format("bucket of unit {}", unit), [this, ready](Group& group) {
        reduce_scatter_sum(ready[0], group);
        if (ready.size() > 1) all_reduce_sum(ready[1], group);  // the tied embedding's second
        sums.bring(arriving, group.stream());                   // NEW: this rank's shard leaves the device
      });
      in_flight = bucket;
    }
  }

  /// Waits for the bucket in flight, adds this rank's shard of it to the sums, and frees it.
  /// NEW: in an early update those sums are complete, and the parameters that they belong to are updated at once: the pass
  /// has gathered them for the last time before their gradients came.
  void collect(const MicroBatch& batch)
  {
    if (!in_flight) return;
    const auto span = run.time.span(Work::exposed, "summing gradients");
    const std::size_t bucket = *in_flight;
    pending.wait();
    sums.add(arriving, of_all_ranks(batch.rows.sequences, world));
    if (adamw.is_under_way()) {
      adamw.expect_finite(sums.first_not_finite());
      for (const TieredSums::Gradients& g : arriving.to) adamw.update(g.block, g.sum);
    }
    gradients.free(bucket);
    in_flight.reset();
  }

  /// NEW: begins an update that runs during the last backward pass of a step. All that it divides by is known now.
  void begin_update(std::int64_t step, LossSum& loss)
  {
    const auto sum_up = [&](Group& group) {
      const auto left_out = run.leave_out("world");
      all_reduce_sum(loss, group);
    };
    queue.start("the loss", sum_up).wait();  // behind units that are being gathered
    const double scale = 1 / static_cast<double>(loss.valid_tokens);
    if (std::isfinite(loss.mean())) adamw.begin({step, loss.mean(), run.schedule.at(step), scale});
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  /// NEW: it runs where its states lie, or above a disk: a block comes, one is updated, one goes.
  /// @param shard_gradients  where they lie; nullptr: each block was updated when its sum was complete.
  StepReport update(std::int64_t step, const LossSum& loss, BlockStore* shard_gradients)
  {
    if (adamw.is_under_way()) adamw.end();
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(sums.squared_norm(world)) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    const auto first_not_finite = [&] { return adamw.first_not_finite(shard_gradients, sums.first_not_finite()); };
    check_finite(step, loss.mean(), norm, table, first_not_finite, world);
    const double scale = clip_factor(norm, run.options.clip) / valid_tokens;
    if (shard_gradients != nullptr) adamw.step(*shard_gradients, {step, loss.mean(), learning_rate, scale});
    gather_parameters();
    tiers.end_step();
    return {loss.mean(), norm, learning_rate};
  }

  /// Of parameters that stay replicated (--persist) each rank has updated its shard.
  void gather_parameters()
  {
    if (parameters.replicated().empty()) return;
    const auto counted = run.count("world");
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    parameters.bring_replicated();  // NEW: this rank's shard of them, from where it lies
    all_gather(parameters.replicated(), world);
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = ZeroOffloadOptions;
  static constexpr const char *name = "07_offload",
                              *title = "Offload to host memory and to disk (ZeRO-Offload, ZeRO-Infinity)";

  ZeroOffload(Run& r, const Options& o) : run(r), options(o) { tiers.measure(); }

  /// Of each bucket this rank's shard, in blocks that come to where AdamW runs, and go back.
  HeldShards shards()
  {
    // BEGIN EXERCISE 07.3 points=10 "Crash-safe states: what lies on the host or in a file without a name goes with the job, and what "
    //     "survives is a checkpoint. The frame saves and resumes what is named here: the elements that this rank owns; a walk "
    //     "over all their blocks, with moments, that brings what is read and takes back what is written; and a copy of "
    //     "some parameters."
    return {table, plan.own, [this](Access access, const UseShard& use) { adamw.for_each(access, use); },
            [this](Range elements, const Tensor& to) { adamw.copy_own(elements, to); }};
    // END EXERCISE
  }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round();
    gather_parameters();
  }
  /// Compared by the frame.
  Tensor replicated() const { return parameters.replicated(); }
  std::string describe() const
  {
    return fmt::format("collectives by {}; {} units", describe_algorithm(world), units.size());
  }
  void report(Report& report)
  {
    report_tiers(report, run.ledger, costs(options, run.session).kept);
    report_links(report, tiers.steps(), link_traffic(plan), tiers.disk_alone());
  }
  void close() { tiers.close(); }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                                                 // device, data, ledgers
  const Options& options;                                                                   // what was asked for
  Group world{"world", Communicator::world(), run.group_setup()};                           // all N ranks
  ParameterTable table = step_plan(options).table;                                          // of the flat vectors
  std::int64_t head_unit = unit_count(run.config) - 1;                                      // of the table
  Model model{{run.config, run.kernels.get(), {}, run.options.dropout, run.options.seed}};  // the chain
  std::vector<FsdpUnit> units = step_plan(options).buckets;                // FSDP units, in backward order
  OffloadPlan plan = offload_plan(options, run.session);                   // what lies where
  Places places{run.memory, {*run.kernels, *run.stream}, run.arithmetic};  // device and host
  Tiers tiers{plan, run.memory, *run.stream, places.host_memory, run.time, run.session.rank()};  // and the links
  const ComputePlace& updating = places.in(plan.updated_in());                                   // where AdamW runs
  CommunicationQueue queue{world, run.time};  // gathers and sends meanwhile
  OffloadedParameters parameters{plan, tiers, *run.stream, queue, table, options.gathering};  // (P/N), and units
  TieredAdamW adamw{plan, tiers, table, parameters.store(), updating, run.options.adamw};     // (P/N)
  GradientLayout layout = sums_of(step_plan(options));                                        // what is summed
  TieredSums sums{plan, run.arithmetic, tiers, places.device, places.host};                   // (P/N) gradients
  BucketGradients gradients{run.memory, *run.stream, table, units, layout};  // of the buckets that are alive
  Pending pending;                                                           // the bucket in flight
  std::optional<std::size_t> in_flight;                                      // which one that is
  TieredSums::Arrival arriving;                                              // this rank's shard of it
  Workspace work{run.memory, run.config, run.shape};                         // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // from a forward pass to its backward pass
  std::optional<GeneratingPass> pass;                         // of a sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::ZeroOffload>(argc, argv);
}
