// Lesson 07: offload to host memory and to disk (ZeRO-Offload, ZeRO-Infinity)
//
// Builds on:    lesson 06 (ZeRO-3)
// New idea:     Between its uses model state need not be on the device: a rank's shards are stored in host memory
//               or in a file on disk. Each all-gather first fetches the rank's shard of the unit. Sums of gradients
//               are accumulated where they are stored. AdamW runs on the host, block by block: one block is fetched
//               while one is updated and one is stored.
// Memory:       on the device, with --offload=all, none of the 16 P / N bytes of model state, only the units in
//               use; the tier below stores them, with buffers for a few blocks
// Traffic:      that of lesson 06; and between host and device about 12 P / N bytes per rank and step of one
//               micro-batch: parameters to the device for each gather (8), gradients from it (4). With a disk below
//               24 P / N are read and 16 P / N written; without clipping 20 and 12, because each block is updated
//               when its sum of gradients arrives, during the backward pass
// Paper:        Ren et al. 2021 (ZeRO-Offload), sections 3 to 5; Rajbhandari et al. 2021 (ZeRO-Infinity), sections
//               5 and 6
//
// Sample runs:  mpirun -np 2 build/lessons/07_offload --steps=5 --offload=optimizer
//               mpirun -np 2 build/lessons/07_offload --steps=5 --tier=disk:build
//             * mpirun -np 4 build/lessons/07_offload --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 06, wherever the state is stored; runs on a small device that lesson 06
//               refuses.
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
#include "lessons/parallel/offload/capacity.hpp"
#include "lessons/parallel/offload/offload_costs.hpp"
#include "lessons/parallel/offload/offload_report.hpp"
#include "lessons/parallel/offload/offloaded_parameters.hpp"
#include "lessons/parallel/offload/tiered_adamw.hpp"
#include "lessons/parallel/offload/tiered_sums.hpp"
#include "lessons/parallel/zero/bucket_gradients.hpp"

namespace rankwise {

/// What this rank holds: 1/N of the parameters, of the gradients and of the optimizer, on the device, on the host
/// or on disk. The frame (lessons/frame/train.hpp) does everything outside of a step.
class ZeroOffload {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Each rank computes its sequences of the global batch in M = G / (N B) micro-batches. Gradients are summed
    // over the ranks after each: in micro-batch m the N ranks take N B neighbouring sequences, B each.
    tiers.links().begin_step();
    const std::vector<Range> micro_batches = micro_batches_of_step(with_padding(run.batch, world), world);
    LossSum loss;
    {
      const auto counted = run.count("world");
      for (const Range& sequences : micro_batches) {
        const MicroBatch batch = run.load(kept, sequences, step);
        loss += forward(batch);
        // NEW: without clipping the update needs no norm of all gradients, so it starts with the last backward
        // pass: each block is updated as soon as its sum of gradients is complete.
        if (plan.updates_early() && sequences == micro_batches.back()) begin_update(step, loss);
        backward(batch);
      }
    }
    // Loss and gradients are sums so far. The loss travels with its number of tokens, by which both are divided.
    if (!plan.updates_early()) all_reduce_sum(loss, world);
    // NEW: the sums of this rank's shards, (P/N), are read from the tier where they are stored.
    return update(step, loss, sums.totals());
  }

  /// Loss of a micro-batch, summed over its tokens. Every gather needs all ranks, so all call it equally often.
  LossSum forward(const MicroBatch& batch)
  {
    // Announce the order in which units will be used, so that each can be prefetched while the one before is used.
    parameters.begin(uses_of(options, batch.training));
    // NEW: before a unit is all-gathered, this rank's shard of it is fetched from the host or the disk, block by
    // block. Then as before: gather, use, free. The embedding: token plus position, (B T, C).
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
      // The parameters are all-gathered a second time, NEW: after this rank's shard is fetched a second time.
      const BranchTensors p = branch_tensors(parameters.use(branch.unit()));
      const BranchTensors d = branch_tensors(gradients.allocate(branch.unit()));
      // The branch's parts in reverse order: residual add, matrices, norm. dx becomes the input's gradient.
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      unit_done(branch.unit(), batch);
    }
    // The lookup's backward pass adds to gradients and reads no parameter, so the embedding is not gathered again.
    // end() frees the last units; collect() waits for the last bucket.
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
    for (std::size_t bucket = 0; bucket < units.size(); ++bucket) {
      // An FSDP unit's gradients are a bucket. The backward pass reaches its first table unit last.
      if (units[bucket].units.first != unit) continue;
      // The previous bucket is freed first, so that at most two neighbouring buckets are alive.
      collect(batch);
      // Reduce-scatter the bucket while the backward pass continues: this rank receives the sum of its own shard.
      const std::vector<Tensor> ready = gradients.of(bucket);
      // NEW: reserve memory on the host for this rank's shard, where the reduced gradients will arrive.
      arriving = sums.expect(bucket, gradients.of(bucket, plan.own[bucket]));
      pending = queue.start(fmt::format("bucket of unit {}", unit), [this, bucket, ready](Group& group) {
        sums.reduce_scatter(bucket, ready, group);
        sums.bring(arriving, group.stream());  // NEW: device to host, the bytes of the shard
      });
      in_flight = bucket;
    }
  }

  /// Waits for the bucket in flight, adds this rank's shard of it to the sums, and frees the bucket.
  void collect(const MicroBatch& batch)
  {
    if (!in_flight) return;
    // Waiting time is exposed communication: the reduce-scatter took longer than the computation beside it.
    const auto span = run.time.span(Work::exposed, "summing gradients");
    const std::size_t bucket = *in_flight;
    pending.wait();
    // NEW: the shard's gradient of N B sequences is added to the sum in its tier; on the host if that is the disk.
    sums.add(arriving, of_all_ranks(batch.rows.sequences, world));
    // NEW: during an early update these sums are complete, so their blocks are updated at once. That is safe
    // because this step has gathered those parameters for the last time.
    if (adamw.is_under_way()) {
      adamw.expect_finite(sums.first_not_finite());
      for (const TieredSums::Gradients& g : arriving.to) adamw.update(g.block, g.sum);
    }
    gradients.free(bucket);
    in_flight.reset();
  }

  /// NEW: begins an update that runs during the last backward pass of a step.
  void begin_update(std::int64_t step, LossSum& loss)
  {
    // The number of valid tokens, by which gradients are divided, is known after the last forward pass. Its
    // all-reduce takes its turn in the queue, which is gathering units already. It is not counted as traffic.
    const auto sum_up = [&](Group& group) {
      const auto left_out = run.leave_out("world");
      all_reduce_sum(loss, group);
    };
    queue.start("the loss", sum_up).wait();
    const double scale = 1 / static_cast<double>(loss.valid_tokens);
    // A loss that is not finite starts no update; update() then ends the run with a message.
    if (std::isfinite(loss.mean())) adamw.begin({step, loss.mean(), run.schedule.at(step), scale});
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  /// @param shard_gradients  where they are stored; nullptr: each block was updated when its sum was complete.
  StepReport update(std::int64_t step, const LossSum& loss, const std::shared_ptr<BlockStore>& shard_gradients)
  {
    // NEW: an early update has reached the last block; wait until all blocks are stored.
    if (adamw.is_under_way()) adamw.end();
    // The norm of all P mean gradients: each rank squares those of its shards, and the squares are all-reduced.
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(sums.squared_norm(world)) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    const auto first_not_finite = [&] { return adamw.first_not_finite(shard_gradients, sums.first_not_finite()); };
    check_finite(step, loss.mean(), norm, table, first_not_finite, world);
    // NEW: AdamW runs where its states are stored, or on the host if that is the disk. While one block of at most
    // 2^18 elements is updated, the next one is fetched and the previous one is stored.
    const double scale = clip_factor(norm, run.options.clip) / valid_tokens;
    if (shard_gradients != nullptr) adamw.step(shard_gradients, {step, loss.mean(), learning_rate, scale});
    gather_parameters();
    tiers.links().end_step();
    return {loss.mean(), norm, learning_rate};
  }

  /// All-gathers the replicated parameters (--persist), of which each rank has updated its shard.
  void gather_parameters()
  {
    if (parameters.replicated().empty()) return;
    const auto counted = run.count("world");
    // Nothing is left to compute in this step, so this communication is exposed.
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    parameters.bring_whole();  // NEW: fetches this rank's updated shard to the device first
    all_gather(parameters.replicated(), world);
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = ZeroOffloadOptions;
  static constexpr const char *name = "07_offload",
                              *title = "Offload to host memory and to disk (ZeRO-Offload, ZeRO-Infinity)";

  ZeroOffload(Run& r, const Options& o) : run(r), options(o) { tiers.measure(); }

  /// This rank's shard of each unit, with its moments, as a walk over blocks: fetched to where AdamW runs, and
  /// stored.
  HeldShards shards() { return adamw.shards(plan.own); }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round();
    gather_parameters();
  }
  /// Parameters that must be the same on all ranks; the frame compares them.
  Tensor replicated() const { return parameters.replicated(); }
  std::string describe() const
  {
    return fmt::format("collectives by {}; {} units", describe_algorithm(world), units.size());
  }
  void report(Report& report)
  {
    report_tiers(report, run.ledger, costs(options, run.session).kept);
    report_links(report, tiers.links().use(), link_traffic(plan), tiers.disk_alone());
  }
  void close() { tiers.close(); }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                        // device, data, ledgers
  const Options& options;                                          // as checked by the frame
  Group world{"world", Communicator::world(), run.group_setup()};  // all N ranks
  ParameterTable table = step_plan(options).table;                 // layout of a flat vector, (P)
  std::int64_t head_unit = unit_count(run.config) - 1;             // last unit of the table
  Model model{{run.config, run.kernels, {}, run.options.dropout, run.options.seed}};  // the layers
  std::vector<FsdpUnit> units = step_plan(options).buckets;  // FSDP units, in backward order
  OffloadPlan plan = offload_plan(options, run.session);     // tier of each state  <- NEW
  DeviceMemory host{&run.memory.device->host_memory(), run.memory.ledger, Tier::host};  // host memory  <- NEW
  std::unique_ptr<Stream> host_stream = host.device->make_stream();                     // its queue of work  <- NEW
  Kernels host_kernels = run.make_kernels(host, *host_stream);                          // its kernels  <- NEW
  Tiers tiers{plan,
              {run.memory, *run.stream, run.kernels},
              {host, *host_stream, host_kernels},
              run.time,
              run.session.rank()};            // device, host and disk, and the links between them  <- NEW
  CommunicationQueue queue{world, run.time};  // gathers and sends while this rank computes
  OffloadedParameters parameters{plan, tiers, *run.stream, queue, table, options.gathering};  // (P/N), and units
  TieredAdamW adamw{plan, tiers, table, parameters.store(), run.options.adamw};               // (P/N) moments
  TieredSums sums{plan, tiers};                                                               // (P/N)
  BucketGradients gradients{run.memory, *run.stream, table, units, sums_of(plan.step)};  // buckets that are alive
  Pending pending;                                            // reduce-scatter of one bucket
  std::optional<std::size_t> in_flight;                       // number of that bucket
  TieredSums::Arrival arriving;                               // its shard on the host
  Workspace work{run.memory, run.config, run.shape};          // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // saved for the backward pass
  std::optional<GeneratingPass> pass;                         // makes samples
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::ZeroOffload>(argc, argv);
}
