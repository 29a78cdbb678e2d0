// Lesson 13: ZeRO-3 with tensor parallelism, hybrid sharding, offloaded (FSDP x TP)
//
// Builds on:    lesson 07 (offload, on top of ZeRO-3) and lesson 08 (tensor parallelism)
// New idea:     The t tensor-parallel ranks of lesson 08 hold one shard of every layer each, P / t parameters. Lesson
//               06 cuts that shard into FSDP units and shards each over the data axis of a dp x t mesh. Both kinds of
//               messages run in one step: a unit is gathered along the data axis before its use, and the partial sums
//               of its output are added up along tp. With --shard-ranks=s only s data ranks, those of a node, share a
//               replica of the state; gradients are then summed over replicas, shard by shard. With --zero=2
//               parameters stay whole along the data axis. Lesson 07's tiers store what a rank has left.
// Memory:       16 P / (s t) bytes of model state per rank, with --zero=2 4 P / t + 12 P / (s t); plus the units that
//               are gathered at the moment, of P / t parameters; activations of lesson 08
// Traffic:      along tp as in lesson 08; along the data axis about 3 M 4 P / t (s-1)/s bytes as in lesson 06, of
//               1 / t of the model; between the dp / s replicas M 4 P / (s t) 2 (dp-s)/dp bytes
// Paper:        Zhao et al. 2023 (PyTorch FSDP), section 3.2.2, hybrid sharding; Shoeybi et al. 2019 (Megatron-LM),
//               section 3; Rajbhandari et al. 2020 (ZeRO), section 5
//
// Sample runs:  mpirun -np 4 build/lessons/13_mesh_zero3 --steps=5
//               mpirun -np 8 build/lessons/13_mesh_zero3 --steps=3 --arithmetic=exact --shard-ranks=2 --offload=all
//               mpirun -np 4 build/lessons/13_mesh_zero3 --steps=3 --zero=2 --sequence-parallel --recompute=block
//             * mpirun -np 8 build/lessons/13_mesh_zero3 --device=cuda --steps=20    (* needs a GPU; eight of them for NCCL)
// Expect:       the loss column of lesson 01, whatever the mesh is; 1 / (s t) of its model state.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/messages/communication_queue.hpp"
#include "common/messages/mesh.hpp"
#include "lessons/13_mesh_zero3/text_on_shards.hpp"
#include "lessons/13_mesh_zero3/tiered_shards.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/mesh/mesh_zero3_costs.hpp"
#include "lessons/parallel/offload/offload_report.hpp"
#include "lessons/parallel/offload/offloaded_parameters.hpp"
#include "lessons/parallel/offload/tiered_adamw.hpp"
#include "lessons/parallel/offload/tiered_sums.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"
#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"
#include "lessons/parallel/tensor/vocabulary_parallel_loss.hpp"
#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "lessons/parallel/zero/gradient_exchange.hpp"

namespace rankwise {

/// What this rank holds: of its tensor-parallel shard of every layer, P / t, one of s shards. The frame
/// (lessons/frame/train.hpp) does everything outside of a step.
class MeshZero3 {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // NEW: the t ranks of a tensor-parallel group load the same sequences; the dp data ranks divide the global batch,
    // in M = G / (dp B) micro-batches. Ranks that share a replica of the state take neighbouring sequences.
    tiers.links().begin_step();
    LossSum loss;
    {
      const auto tp_counted = run.count("tp"), shard_counted = run.count("shard"), counted = run.count("replicas");
      for (const Range& sequences : sequences_of_step(run.batch, place)) {
        const MicroBatch batch = run.load(kept, sequences, step);
        loss += forward(batch);
        backward(batch);
      }
    }
    // NEW: losses are summed along the data axis only, because all tensor-parallel ranks have the same loss already.
    for (Group* axis : {&shard, &replicas}) all_reduce_sum(loss, *axis);
    // The sums of this rank's shards, (P / (s t)), are all that is left of the gradients.
    return update(step, loss, sums.totals());
  }

  /// Loss of a micro-batch, summed over its tokens. Every gather needs all ranks, so all call it equally often.
  LossSum forward(const MicroBatch& batch)
  {
    // Announce the order in which units will be used, so that each can be prefetched while the one before is used.
    parameters.begin(uses_of(options, batch.training));
    // NEW: gather, use, free along the data axis, as in lesson 06; what is gathered is this rank's tensor-parallel
    // shard of a unit. A rank has V / t rows of the token embedding, and operator g of lesson 08 makes the rows whole.
    const EmbeddingTensors embedding = embedding_tensors(parameters.use(0));
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), parts.sum(work.output), embedding, tokens_of(batch, run.shape.tokens));
    forward_branches(0, model.branches.size(), batch);
    // NEW: the head, over a divided vocabulary: the ranks exchange three numbers a token, and no logits.
    parameters.use(head_unit);
    run.charge_forward(head_unit);
    const LossSum loss = vocabulary_parallel_loss(model.head, head_parameters(), kept.head, batch, parts);
    // In validation no backward pass follows, and the last units are freed here.
    if (!batch.training) parameters.end();
    return loss;
  }

  /// Adds the gradient of that loss to the sums of this rank's shards.
  void backward(const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const MicroBatch rows = tokens_of(batch, run.shape.tokens);  // with sequence parallelism T / t tokens of each
    const HeadTensors p_head = head_parameters();                // still gathered from the end of the forward pass
    // Gradients are allocated, all zero, when the backward pass reaches their unit. The token embedding is tied to
    // the head: its gradients are allocated first and live until the lookup has added to them.
    const EmbeddingTensors d_embedding = embedding_tensors(gradients.allocate(0));
    const HeadTensors d_head = head_tensors(gradients.allocate(head_unit), gradients.tied_to(d_embedding.token));
    // NEW: operator f: each rank's V / t columns give a partial sum of the gradient in front of them.
    model.head.apply_backward(output, d_head, parts.regathered(kept.head), p_head, batch);
    run.stream->zero(dx);
    row_gradients.normalise_backward(model.head, dx, d_head, parts.sum(output), kept.head, p_head, rows);
    unit_done(head_unit, batch);

    // The branches, last first. With recomputation a block runs its forward pass again before its backward pass.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);

      const Branch& branch = model.branches[i];
      const BranchActivations& a = kept.branches[i];
      // The unit is all-gathered a second time along the data axis, and its gradients are allocated.
      const BranchTensors p = branch_tensors(parameters.use(branch.unit()));
      const BranchTensors d = branch_tensors(gradients.allocate(branch.unit()));
      // NEW: around the divided layer operators g and f, along tp, while the next unit is on its way along the data
      // axis. The two never wait for each other: each axis has its own group, and the queue its own thread.
      const Tensor own = row_gradients.add_backward(branch, d, dx, output, rows);
      branch.apply_backward(output, d, parts.gather(own, output), work.wide, parts.regathered(a), p, batch);
      row_gradients.normalise_backward(branch, dx, d, parts.sum(output), a, p, rows);
      unit_done(branch.unit(), batch);
    }
    // The lookup's backward pass adds to gradients and reads no parameter, so the embedding is not gathered again.
    // end() frees the last units; collect() waits for the last bucket.
    parameters.end();
    model.embedding.backward(d_embedding, parts.gather(dx, output), batch);
    unit_done(0, batch);
    collect(batch);
  }

  /// Loss of the whole validation split, of which each data rank computes every dp-th micro-batch.
  LossSum evaluate()
  {
    const auto [data, d] = place.data();
    LossSum loss = run.validate(kept, {data, d}, [&](const MicroBatch& b) { return forward(b); });
    for (Group* axis : {&shard, &replicas}) all_reduce_sum(loss, *axis);
    return loss;
  }

  /// The token that follows a text. All ranks compute the same one, since each gather and each sum needs all of them.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run, model, parameters, tp);
    return generator->next_token(text, number);
  }

 private:
  /// Forward pass of branches [first, last): each computes x + branch(norm(x)), (R, C), or (R / t, C) of it.
  void forward_branches(std::size_t first, std::size_t last, const MicroBatch& batch)
  {
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors p = branch_tensors(parameters.use(branch.unit()));
      // NEW: operators f and g of lesson 08 around the divided layer, whose parameters have just been gathered.
      // BEGIN TWIN 08.1
      branch.normalise(parts.own(kept.branches[i]), p);
      branch.apply(work.output, parts.gathered(kept.branches[i]), p, batch);
      const Tensor sum = parts.sum(work.output);
      branch.add(kept.stream(i + 1), kept.branches[i], sum, p, tokens_of(batch, run.shape.tokens));
      // END TWIN
      run.charge_forward(branch.unit());
    }
  }

  /// Parameters of the head while it is in use. Its matrix is this rank's rows of the token embedding, (V / t, C).
  HeadTensors head_parameters() const
  {
    return head_tensors(parameters.of(head_unit), embedding_tensors(parameters.of(0)).token);
  }

  /// A unit's gradients of this micro-batch are complete: sums the bucket that it completes, if any.
  void unit_done(std::int64_t unit, const MicroBatch& batch)
  {
    run.charge_backward(unit);
    for (std::size_t bucket = 0; bucket < units.size(); ++bucket) {
      // An FSDP unit's gradients are a bucket. The backward pass reaches its first table unit last.
      if (units[bucket].units.first != unit) continue;
      // The previous bucket is freed first, so that at most two neighbouring buckets are alive.
      collect(batch);
      // NEW: first sum, along tp: with sequence parallelism the gradients of norms and biases cover this rank's tokens.
      const std::vector<Tensor> ready = gradients.of(bucket);
      row_gradients.add_to(ready[0], units[bucket].elements, tp);
      // Second sum, along the data axis, while the backward pass continues: this rank receives its own shard.
      const std::vector<Tensor> mine = gradients.of(bucket, plan.own[bucket]);
      arriving = sums.expect(bucket, mine);
      pending = queue.start(fmt::format("bucket of unit {}", unit), [this, ready, mine](Group& group) {
        reduce_scatter_sum(ready, group);
        // NEW: third sum, over replicas: of the shard alone, P_t / s numbers, with the same shard of other replicas.
        all_reduce_in_queue(mine, replicas);
        sums.bring(arriving, group.stream());  // to the tier where gradients are stored
      });
      in_flight = bucket;
    }
  }

  /// Waits for the bucket in flight, adds this rank's shard of it to the sums, and frees the bucket.
  void collect(const MicroBatch& batch)
  {
    if (!in_flight) return;
    // Waiting time is exposed communication: the sums took longer than the computation beside them.
    const auto span = run.time.span(Work::exposed, "summing gradients");
    // BEGIN TWIN 05.1
    const std::size_t bucket = *in_flight;
    pending.wait();
    // The shard's gradient of dp B sequences is added to the sum in its tier.
    sums.add(arriving, of_all_data_ranks(batch.rows.sequences, place));
    gradients.free(bucket);
    in_flight.reset();
    // END TWIN
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  /// @param shard_gradients  sums of this rank's shards, in the tier where they are stored.
  StepReport update(std::int64_t step, const LossSum& loss, const std::shared_ptr<BlockStore>& shard_gradients)
  {
    // NEW: the norm of all P mean gradients: each rank squares those of its shards, of tensors that all tensor-parallel
    // ranks have on rank 0 only (plan.counted). Then the squares are summed over the ranks of a replica.
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    auto squares = sums.squares();
    for (Group* axis : {&shard, &tp}) all_reduce_sum(squares, *axis);
    const double norm = std::sqrt(squares.value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    const auto first_not_finite = [&] { return adamw.first_not_finite(shard_gradients, sums.first_not_finite()); };
    check_finite(step, loss.mean(), norm, table, first_not_finite, mesh.world());
    // AdamW updates this rank's shards where their states are stored. All replicas make the same update.
    const double scale = clip_factor(norm, run.options.clip) / valid_tokens;
    adamw.step(shard_gradients, {step, loss.mean(), learning_rate, scale});
    gather_parameters();
    tiers.links().end_step();
    return {loss.mean(), norm, learning_rate};
  }

  /// All-gathers the parameters that stay whole: with --zero=2 all of them, otherwise those of --persist.
  void gather_parameters()
  {
    const auto counted = run.count("shard");
    const auto span = run.time.span(Work::exposed, "gathering parameters");
    parameters.bring_whole();  // from the tier where this rank's shards are stored
    for (const Tensor& whole : parameters.whole()) all_gather(whole, shard);
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = MeshZeroOptions;
  static constexpr const char *name = "13_mesh_zero3",
                              *title = "ZeRO-3 with tensor parallelism, hybrid sharding, offloaded (FSDP x TP)";

  MeshZero3(Run& r, const Options& o) : run(r), options(o)
  {
    reserve_scratch(options, run.session, mesh);
    tiers.measure();
  }

  /// This rank's shards, with their moments, as a walk over blocks in their tier.
  HeldShards shards() { return adamw.shards(plan.own); }
  /// NEW: those of them that this rank counts, so that each element has one owner in a replica.
  HeldShards owned_shards() { return adamw.shards(plan.counted); }
  int replica() const { return replicas.rank(); }
  auto& optimizer() { return adamw; }
  void after_load()
  {
    adamw.round();
    gather_parameters();
  }
  std::string describe() const
  {
    return fmt::format("replicas={} shard={} tp={}; collectives by {}; {} units{}", replicas.ranks(), shard.ranks(),
                       tp.ranks(), describe_algorithm(shard), units.size(),
                       options.show_groups ? "\n" + mesh.table() : "");
  }
  void report(Report& report)
  {
    // NEW: each tensor-parallel rank updates the tensors that all have by itself, and so does each replica its shards.
    const std::vector<Range> undivided = undivided_elements(table, plan.own);
    check_same(report, "tensors that tp does not divide", tp, adamw.shards(undivided));
    check_same(report, "shards of all replicas", replicas, shards());
    if (options.offload.what == Offload::none) return;
    report_tiers(report, run.ledger, costs(options, run.session).kept);
    report_links(report, tiers.links().use(), link_traffic(plan), tiers.disk_alone());
  }
  void close() { tiers.close(); }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                                                    // device, data, ledgers
  const Options& options;                                      // as checked by the frame
  std::unique_ptr<Stream> beside = run.device->make_stream();  // messages beside the computation  <- NEW
  Mesh mesh{run.session, options.axes(run.session.ranks(), beside.get()),
            run.group_setup()};  // all N ranks  <- NEW
  Group &replicas = mesh.group("replicas"), &shard = mesh.group("shard"),
        &tp = mesh.group("tp");                           // its axes  <- NEW
  ShardingPlace place = options.place(run.session);       // this rank's coordinates  <- NEW
  OffloadPlan plan = offload_plan(options, run.session);  // this rank's shards, and the tier of each state
  ParameterTable table = plan.step.table;                 // layout of a flat vector, (P_t)
  std::int64_t head_unit = unit_count(run.config) - 1;    // last unit of the table
  Model model{{run.config, run.kernels, run.shape.part, run.options.dropout, run.options.seed}};  // the layers
  std::vector<FsdpUnit> units = plan.step.buckets;  // FSDP units, in backward order
  DeviceMemory host{&run.memory.device->host_memory(), run.memory.ledger, Tier::host};  // host memory
  std::unique_ptr<Stream> host_stream = host.device->make_stream();                     // its queue of work
  Kernels host_kernels = run.make_kernels(host, *host_stream);                          // its kernels
  Tiers tiers{plan,
              {run.memory, *run.stream, run.kernels},
              {host, *host_stream, host_kernels},
              run.time,
              run.session.rank()};            // device, host and disk, and the links between them
  CommunicationQueue queue{shard, run.time};  // gathers and sends while this rank computes
  OffloadedParameters parameters{plan,  tiers, *run.stream,
                                 queue, table, options.gather_options()};                // (P_t/s), and units
  TieredAdamW adamw{plan, tiers, table, parameters.store(), run.options.adamw};          // (P_t/s) moments
  TieredSums sums{plan, tiers};                                                          // (P_t/s)
  BucketGradients gradients{run.memory, *run.stream, table, units, sums_of(plan.step)};  // buckets that are alive
  Pending pending;                                                                       // sums of one bucket
  std::optional<std::size_t> in_flight;                                                  // number of that bucket
  TieredSums::Arrival arriving;                                                          // its shard in its tier
  Workspace work{run.memory, run.config, run.shape};                                     // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // saved for the backward pass
  TensorParallelMessages parts{tp, run.shape, run.config.channels, work, run.kernels, run.time};  // f, g  <- NEW
  RowGradients row_gradients{tp.memory(), *run.stream, table, run.shape, run.kernels};  // norms, biases  <- NEW
  std::optional<TextOnShards> generator;                                                // makes samples
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::MeshZero3>(argc, argv);
}
