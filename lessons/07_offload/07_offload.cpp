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

#include <algorithm>
#include <cmath>
#include <memory>
#include <omp.h>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/cuda/devices.hpp"
#include "common/device.hpp"
#include "common/in_turn.hpp"
#include "common/job_report.hpp"
#include "common/messages/agreement.hpp"
#include "common/messages/communication_queue.hpp"
#include "common/messages/messages.hpp"
#include "common/options.hpp"
#include "common/placement.hpp"
#include "common/program.hpp"
#include "common/report.hpp"
#include "common/text.hpp"
#include "common/time_ledger.hpp"
#include "common/trace.hpp"
#include "data/corpus.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/checkpoint.hpp"
#include "gpt2/generate.hpp"
#include "gpt2/model.hpp"
#include "gpt2/reference_run.hpp"
#include "gpt2/run_report.hpp"
#include "gpt2/training_options.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/04_zero1/segments.hpp"
#include "lessons/04_zero1/shards.hpp"
#include "lessons/04_zero1/step_plan.hpp"
#include "lessons/05_zero2/bucket_gradients.hpp"
#include "lessons/05_zero2/shard_sums.hpp"
#include "lessons/06_zero3/units.hpp"
#include "lessons/07_offload/host_room.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/offload_directory.hpp"
#include "lessons/07_offload/offload_report.hpp"
#include "lessons/07_offload/offloaded_parameters.hpp"
#include "lessons/07_offload/tiered_adamw.hpp"
#include "lessons/07_offload/tiered_sums.hpp"
#include "lessons/07_offload/tiers.hpp"
#include "lessons/07_offload/what_fits.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  OptionTable table{"07_offload", "Offload to host memory and to disk (ZeRO-Offload, ZeRO-Infinity)"};
  MessageOptions messages;
  GatherOptions gathering;
  OffloadOptions offload;

  Options()
  {
    declare(table, *this);
    declare(table, messages);
    declare(table, gathering);
    declare(table, offload);
  }

  /// The sequences of the global batch that one rank computes.
  std::int64_t share(int ranks) const { return global_batch / ranks; }
  /// Which ranks share a node.
  Topology topology() const { return topology_of_job(messages.ranks_per_node, device); }
  /// The units that a pass computes with, in order: what is gathered, and when, follows from it.
  std::vector<Use> uses(bool training) const
  {
    const std::int64_t head = unit_count(config()) - 1;
    std::vector<Use> uses;
    for (std::int64_t u = 0; u < head; ++u) uses.push_back({u});
    uses.push_back({head, 0});  // which has the token embedding
    for (std::int64_t u = head - 1; training && u > 0; --u) {
      if (recompute_blocks && u % 2 == 0) uses.insert(uses.end(), {{u - 1}, {u}});
      uses.push_back({u});
    }
    return uses;
  }
  /// When those of a training pass are gathered.
  std::vector<GatherStep> gathers() const { return plan_gathers(plan().buckets, uses(true), gathering); }
  /// What formulas count.
  StepPlan plan() const
  {
    const Arithmetic sums(arithmetic);
    const ParameterTable parameters(config(), {}, {0, -1}, gathering.persist);
    return {parameters,
            make_units(parameters, gathering.unit),
            gradients,
            precision,
            sums.keeps_tied_apart(),
            messages.algorithm(sums.default_collectives()),
            global_batch,
            micro_batch};
  }
  /// What lies where, and what comes and goes.
  OffloadPlan offload_plan(const Session& s) const { return {offload, plan(), gathers(), s, clip > 0}; }
};

// ---- State -----------------------------------------------------------------------------------------------------------

/// What this rank holds.
struct State {
  State(const Options& o, const Session& s) : options(o), session(s) {}

  const Options& options;                                                            // what was asked for
  const Session& session;                                                            // rank r of N
  ModelConfig config = options.config();                                             // L, H, C, V
  BatchShape batch = options.batch(options.share(session.ranks()));                  // G, B, T
  ActivationShape shape = options.activation_shape(options.share(session.ranks()));  // of one micro-batch

  TimeLedger time;                                               // where the time goes
  MemoryLedger ledger{options.memory_limit.value};               // counts every buffer below
  std::unique_ptr<Device> device = make_device(options.device);  // where everything lies
  std::unique_ptr<Stream> stream = device->make_stream();        // the order in which it works
  DeviceMemory memory{device.get(), &ledger};                    // the device's memory, counted
  Arithmetic arithmetic{options.arithmetic, options.tf32};       // the order of sums
  Messages messages{options.messages, memory, *stream, time};    // who counts them and who watches
  Group world{"world", Communicator::world(), messages.setup(arithmetic.default_collectives())};  // all N ranks
  std::unique_ptr<Kernels> kernels = arithmetic.make_kernels(memory, *stream);  // what the pieces compute with

  DeviceMemory host{&device->host_memory(), &ledger, Tier::host};    // what the device reaches of it
  std::unique_ptr<Stream> host_stream = host.device->make_stream();  // the order in which it works
  std::unique_ptr<Kernels> host_kernels = arithmetic.make_kernels(host, *host_stream);  // what is computed there
  OffloadPlan offload = options.offload_plan(session);                                  // what lies where
  Tiers tiers{offload, memory, *stream, host, time, session.rank()};  // the memories, and the links
  Place on_device{*kernels, *stream}, on_host{*host_kernels, *host_stream};
  Place updating = offload.updated_in() == Tier::device ? on_device : on_host;  // where AdamW runs

  Tokens tokens = open_corpus(options.data);              // the text
  Loader loader{tokens.train, options.loader_options()};  // deals out its windows
  Batch host_batch;                                       // windows on their way to the device
  Schedule schedule = options.schedule_over(loader);      // the learning rate of each step

  ParameterTable table = options.plan().table;                              // what stands where in the flat vectors
  Model model{{config, kernels.get(), {}, options.dropout, options.seed}};  // the chain
  std::vector<Bucket> buckets = options.plan().buckets;                     // units, in backward order
  CommunicationQueue queue{world, time};  // gathers them and sends gradients meanwhile

  std::vector<Segment> segments = make_segments(buckets, world.ranks());  // of these: who owns what
  std::vector<Range> own = segments_of(world.rank(), segments);           // this rank: one of each bucket
  Buffer room{memory, Category::communication, DType::f32, {block_elements(segments)}, "a block"};  // of any owner
  OffloadedParameters parameters{offload, tiers, *stream,
                                 queue,   table, options.gathering};  // (P/N), and units of a pass
  TieredAdamW adamw{offload, tiers, table, parameters.store(), updating, options.adamw};  // (P/N) states

  GradientLayout layout = sums_of(options.plan());                     // what is summed
  TieredSums sums{offload, arithmetic, tiers, on_device, on_host};     // (P/N) gradients
  BucketGradients gradients{memory, *stream, table, buckets, layout};  // of what the backward pass is at

  Pending pending;                                // the bucket on its way
  std::optional<std::size_t> on_its_way;          // which one that is
  TieredSums::Arrival arriving;                   // this rank's segment of it
  Traffic sent;                                   // by one step's gradients and parameters
  LinkUse moved;                                  // over the links, in all steps
  Workspace work{memory, config, shape};          // scratch of both passes
  Activations kept{memory, config, shape, work};  // from a forward pass to its backward pass
};

/// Copies the parameters that stay on every rank from the ranks that own them to all others.
void gather_apart(State& state)
{
  if (state.parameters.apart().empty()) return;
  const auto span = state.time.span(Work::exposed, "gathering parameters");
  state.parameters.bring_apart();
  all_gather(state.parameters.apart(), state.world);
}

/// A state in which what this rank owns has its initial values.
std::unique_ptr<State> make_state(const Options& options, const Session& session)
{
  omp_set_num_threads(options.threads);
  auto state = std::make_unique<State>(options, session);
  state->tiers.measure();
  Stream& stream = state->updating.stream;
  state->adamw.for_each(Access::write, [&](const Shard& mine) {
    initialize_parameters(stream, mine.parameters, state->table, state->config, options.seed, mine.owned.first);
    stream.zero(mine.first_moments);
    stream.zero(mine.second_moments);
  });
  return state;
}

/// The same bytes by tier and category, from the sizes alone.
TierBytes memory_formula(const Options& options, const Session& session)
{
  const ModelConfig config = options.config();
  const OffloadPlan plan = options.offload_plan(session);
  const ActivationShape shape = options.activation_shape(options.share(session.ranks()));
  TierBytes tiers = state_bytes(plan, Arithmetic(options.arithmetic), session);
  CategoryBytes& bytes = in_tier(Tier::device, tiers);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  bytes[Category::communication] = host_values_bytes(options.device, session.ranks());
  bytes[Category::communication] += message_bytes(plan.step, options.topology(), session.rank());
  return tiers;
}

/// What a run needs at most: the same, and the units that are gathered and the gradients that are alive at once.
TierBytes memory_plan(const Options& options, const Session& session)
{
  TierBytes tiers = memory_formula(options, session);
  CategoryBytes& bytes = in_tier(Tier::device, tiers);
  bytes[Category::gradients] += alive_bytes(options.plan());
  bytes[Category::parameters] += gathered_bytes(options.plan(), options.gathers());
  return tiers;
}

// ---- Sums of gradients ----------------------------------------------------------------------------------------------

/// Waits for the bucket that is on its way, if there is one; keeps the sums of this rank's segment and frees the rest. In an
/// early update they are whole, and what they belong to is updated. The pass is done with it: a unit is gathered for its
/// backward pass for the last time, and its gradients come after that.
void collect(State& state, const MicroBatch& batch)
{
  if (!state.on_its_way) return;
  const auto span = state.time.span(Work::exposed, "summing gradients");
  const std::size_t bucket = *state.on_its_way;
  state.pending.wait();
  state.sums.add(state.arriving, of_all_ranks(batch.rows.sequences, state.world));
  if (state.adamw.is_under_way()) {
    state.adamw.expect_finite(state.sums.first_not_finite());
    for (const TieredSums::Gradients& g : state.arriving.to) state.adamw.update(g.block, g.sum);
  }
  state.gradients.free(bucket);
  state.on_its_way.reset();
}

/// Starts the sum over the ranks of the bucket that is complete with @p unit, if there is one: each rank gets its segment.
void send_if_full(State& state, std::int64_t unit, const MicroBatch& batch)
{
  for (std::size_t bucket = 0; bucket < state.buckets.size(); ++bucket) {
    if (state.buckets[bucket].units.first != unit) continue;
    collect(state, batch);  // the one before: no more than two neighbours are alive
    const std::vector<Tensor> gradients = state.gradients.of(bucket);
    state.arriving = state.sums.expect(bucket, state.gradients.of(bucket, state.own[bucket]));
    state.pending = state.queue.start(fmt::format("bucket of unit {}", unit), [&state, gradients](Group& world) {
      reduce_scatter_sum(gradients[0], world);
      for (std::size_t i = 1; i < gradients.size(); ++i) all_reduce_sum(gradients[i], world);  // what is kept apart
      state.sums.bring(state.arriving, world.stream());
    });
    state.on_its_way = bucket;
  }
}

// ---- Forward and backward pass ---------------------------------------------------------------------------------------

/// Counts the arithmetic of a unit on the virtual clock, if there is one.
/// @param passes  1 for a forward pass, 2 for a backward pass.
void charge(State& state, std::int64_t unit, int passes)
{
  VirtualClock* clock = state.messages.clock();
  if (clock == nullptr) return;
  const double flops = unit_flops(state.config, unit, state.shape.rows(), state.batch.sequence);
  clock->charge_compute(passes * std::llround(flops), passes == 1 ? "forward" : "backward");
}

/// Forward pass of branches [first, last).
void forward_branches(State& state, std::size_t first, std::size_t last, const MicroBatch& batch)
{
  const Activations& kept = state.kept;
  const Tensor& output = state.work.output;
  for (std::size_t i = first; i < last; ++i) {
    const Branch& branch = state.model.branches[i];
    const BranchTensors p = branch_tensors(state.parameters.use(branch.unit()));
    branch.normalise(kept.branches[i], p);
    branch.apply(output, kept.branches[i], p, batch);
    branch.add(kept.stream(i + 1), kept.branches[i], output, p, batch);
    charge(state, branch.unit(), 1);
  }
}

/// The head's parameters, when the pass is there.
HeadTensors head_parameters(State& state)
{
  const std::int64_t head = unit_count(state.config) - 1;
  return head_tensors(state.parameters.of(head), embedding_tensors(state.parameters.of(0)).token);
}

/// The sum of losses of a micro-batch; what its backward pass needs is kept.
LossSum forward(State& state, const MicroBatch& batch)
{
  const Model& model = state.model;
  const Activations& kept = state.kept;
  const Tensor& output = state.work.output;

  state.parameters.begin(state.options.uses(batch.training));
  const EmbeddingTensors first = embedding_tensors(state.parameters.use(0));
  model.embedding.lookup(output, first, batch);
  model.embedding.add(kept.stream(0), output, first, batch);
  forward_branches(state, 0, model.branches.size(), batch);
  state.parameters.use(unit_count(state.config) - 1);
  charge(state, unit_count(state.config) - 1, 1);
  return model.head.forward(kept.head, head_parameters(state), batch);
}

/// Adds the gradient of that sum to the sums of gradients; each unit's is made, sent and freed on the way.
void backward(State& state, const MicroBatch& batch)
{
  const Model& model = state.model;
  const HeadTensors p_head = head_parameters(state);
  const Activations& kept = state.kept;
  const Tensor &dx = state.work.dstream, &output = state.work.output, &wide = state.work.wide;

  const std::int64_t last = unit_count(state.config) - 1;
  const EmbeddingTensors d_embedding = embedding_tensors(state.gradients.make_room(0));
  const HeadTensors d_head =
      head_tensors(state.gradients.make_room(last), state.gradients.second_of(d_embedding.token));
  model.head.apply_backward(output, d_head, kept.head, p_head, batch);
  state.stream->zero(dx);
  model.head.normalise_backward(dx, d_head, output, kept.head, p_head, batch);
  charge(state, last, 2);
  send_if_full(state, last, batch);

  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, i - 1, i + 1, batch);

    const Branch& branch = model.branches[i];
    const BranchTensors p = branch_tensors(state.parameters.use(branch.unit()));
    const BranchTensors d = branch_tensors(state.gradients.make_room(branch.unit()));
    const Tensor doutput = branch.add_backward(d, dx, output, batch);
    branch.apply_backward(output, d, doutput, wide, kept.branches[i], p, batch);
    branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
    charge(state, branch.unit(), 2);
    send_if_full(state, branch.unit(), batch);
  }
  state.parameters.end();
  model.embedding.backward(d_embedding, dx, batch);
  send_if_full(state, 0, batch);
  collect(state, batch);
}

// ---- Training --------------------------------------------------------------------------------------------------------

/// Begins an update that goes on beside the last backward pass of a step: all that it divides by is known, unless the loss
/// is not finite.
/// @param[in,out] loss  of this rank, then of all.
/// @return  what that has sent.
Traffic begin_update(State& state, std::int64_t step, LossSum& loss)
{
  Traffic sent;
  const auto sum_up = [&](Group& world) {
    const Traffic before = state.messages.traffic().total();
    all_reduce_sum(loss, world);
    sent = state.messages.traffic().total() - before;
  };
  state.queue.start("the loss", sum_up).wait();  // behind units that are being gathered
  const double valid_tokens = static_cast<double>(loss.valid_tokens);
  if (std::isfinite(loss.mean())) state.adamw.begin({step, loss.mean(), state.schedule.at(step), 1 / valid_tokens});
  return sent;
}

/// One optimizer step over the global batch; this rank's share of it in passes of B.
StepReport train_step(State& state, std::int64_t step)
{
  const Stopwatch clock;
  const auto span = state.time.span(Work::compute, "training step");
  LossSum loss;
  Traffic before = state.messages.traffic().total();
  const bool early = state.offload.updates_early();
  const std::vector<Range> passes = passes_of_step(state.batch, state.world);
  const LinkUse moved_before = state.tiers.links().use();
  for (const Range& sequences : passes) {
    {
      const auto reading = state.time.span(Work::io, "reading tokens");
      state.loader.load(step, sequences, state.host_batch);
    }
    const MicroBatch batch = place(state.kept, *state.stream, state.host_batch, sequences, step);
    loss += forward(state, batch);
    if (early && sequences == passes.back()) before += begin_update(state, step, loss);
    backward(state, batch);
  }

  BlockStore* const gradients = state.sums.totals();  // none where each block was used when it came
  state.sent = state.messages.traffic().total() - before;
  if (!early) all_reduce_sum(loss, state.world);
  if (state.adamw.is_under_way()) state.adamw.end();

  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  const double norm = std::sqrt(state.sums.squared_norm(state.world)) / valid_tokens;
  const double learning_rate = state.schedule.at(step);
  const auto first_not_finite = [&] {
    const auto first = state.adamw.first_not_finite(gradients);
    return first ? first : state.sums.first_not_finite();
  };
  check_finite(step, loss.mean(), norm, state.table, first_not_finite, state.world);
  const Traffic updating = state.messages.traffic().total();
  const double scale = clip_factor(norm, state.options.clip) / valid_tokens;
  if (!early) state.adamw.step(*gradients, {step, loss.mean(), learning_rate, scale});
  gather_apart(state);
  state.sent += state.messages.traffic().total() - updating;
  state.stream->synchronise();
  state.messages.end_step();
  state.moved += state.tiers.links().use().since(moved_before);
  return {loss.mean(), norm, learning_rate, clock.seconds()};
}

/// The mean loss over the whole validation split; each rank takes every N-th pass, or one without windows: all ranks gather.
double evaluate(State& state)
{
  const auto span = state.time.span(Work::compute, "validation");
  const Loader validation(state.tokens.validation, state.options.loader_options());
  LossSum loss;
  const std::int64_t B = state.batch.micro_batch;
  for (std::int64_t first = 0; first < validation.windows(); first += state.session.ranks() * B) {
    const Range windows = intersect({first + state.session.rank() * B, B}, {0, validation.windows()});
    validation.load_in_order(windows, state.host_batch);
    pad(state.host_batch, B);
    MicroBatch batch = place(state.kept, *state.stream, state.host_batch, {0, B}, 0);
    batch.training = false;
    loss += forward(state, batch);
    state.parameters.end();
  }
  all_reduce_sum(loss, state.world);
  return loss.mean();
}

/// Generates text, one token after the other, from the last T of those before it; the same on all ranks.
std::string sample(State& state)
{
  const auto span = state.time.span(Work::compute, "sampling");
  const std::shared_ptr<const Tokenizer> tokenizer = state.tokens.tokenizer;
  GeneratingPass pass(state.memory, *state.stream, state.model, state.shape.type, state.batch.sequence);
  const std::vector<Token> prompt = tokenizer->encode("\n");
  std::vector<Token> text = prompt;
  for (std::int64_t number = 0; number < state.options.sample; ++number) {
    pass.begin(text);
    state.parameters.begin(state.options.uses(false));
    pass.embedding(embedding_tensors(state.parameters.use(0)));
    for (std::size_t i = 0; i < state.model.branches.size(); ++i)
      pass.branch(i, branch_tensors(state.parameters.use(state.model.branches[i].unit())));
    state.parameters.use(unit_count(state.config) - 1);
    text.push_back(pick_token(pass.head(head_parameters(state)), state.options.sampling, number));
    state.parameters.end();
  }
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return tokenizer->decode(text);
}

// ---- Checkpoints -----------------------------------------------------------------------------------------------------

/// This rank's parameters on the host, segment behind segment.
std::vector<float> own_parameters(State& state)
{
  std::vector<float> all;
  state.adamw.for_each(Access::read, [&](const Shard& mine) {
    const std::vector<float> block = to_host<float>(state.updating.stream, mine.parameters);
    all.insert(all.end(), block.begin(), block.end());
  });
  return all;
}

/// Saves the state after @p step steps; each rank what it owns, one after the other. The checkpoint before it stays until
/// this one is complete.
void save(State& state, std::int64_t step)
{
  const auto span = state.time.span(Work::io, "saving a checkpoint");
  const std::string& path = state.options.checkpoint;
  // BEGIN EXERCISE 07.3 points=10 "Crash-safe states: what lies on the host or in a file without a name goes with the job, and what "
  //     "survives is a checkpoint. Rank 0 begins one, each rank writes its blocks into it as they come, and rank 0 gives it "
  //     "its name when those of all ranks are there; a job that is killed on the way leaves the checkpoint before it."
  if (state.session.rank() == 0)
    create_checkpoint(path, {.config = state.config,
                             .step = step,
                             .updates = state.adamw.updates(),
                             .options = run_options(state.options, state.tokens)});
  in_turn(state.session, [&] {
    state.adamw.for_each(Access::read,
                         [&](const Shard& mine) { write_checkpoint(path, state.updating.stream, mine); });
  });
  if (state.session.rank() == 0) commit_checkpoint(path);
  // END EXERCISE
}

/// Goes on from what --resume or --initial names, if one of them is given; this rank reads what it owns.
/// @return  the steps that were made before.
std::int64_t resume(State& state)
{
  const Options& o = state.options;
  const auto span = state.time.span(Work::io, "reading a checkpoint");
  Stream& stream = state.updating.stream;
  if (!o.initial.empty())  // the parameters, and nothing else
    state.adamw.for_each(Access::update, [&](const Shard& mine) {
      read_checkpoint(o.initial, stream, {state.table, mine.owned, mine.parameters, {}, {}});
    });
  if (!o.resume) return 0;
  const CheckpointInfo saved = check_checkpoint(o.checkpoint, "--checkpoint=" + o.checkpoint);
  state.adamw.for_each(Access::write, [&](const Shard& mine) { read_checkpoint(o.checkpoint, stream, mine); });
  state.adamw.resume(saved.updates);
  return saved.step;
}

// ---- Run -------------------------------------------------------------------------------------------------------------

/// What would make a run fit that has no room on the device, as a sentence.
std::string what_fits(const Options& options, const Session& session, std::int64_t room)
{
  Options o;
  static_cast<TrainingOptions&>(o) = options;
  o.messages = options.messages;
  o.gathering = options.gathering;
  o.offload = options.offload;
  const auto needs = [&] { return in_tier(Tier::device, memory_plan(o, session)).total(); };
  return what_fits(o, o.gathering, o.offload, needs, room);
}

/// Refuses what cannot be done, before anything is done.
/// @param directory  is this job's from then on, if the disk is a tier.
void check(const Options& options, const Session& session, std::optional<OffloadDirectory>& directory)
{
  check_tier(options.offload);
  check_share(options.global_batch, session.ranks());
  check_options(options, {.dp = session.ranks()});
  check_gathers(options.gathering, options.uses(true));
  const Arithmetic arithmetic(options.arithmetic);
  const Algorithm fallback = arithmetic.default_collectives();
  check_options(options.messages, fallback, options.device);
  arithmetic.check_collectives(options.messages.algorithm(fallback));
  const TierBytes planned = memory_plan(options, session);
  const std::int64_t limit = options.memory_limit.value;
  check_memory_limit(in_tier(Tier::device, planned), limit, what_fits(options, session, limit));
  if (options.dry_run) return;
  check_device(options.device);
  check_own_gpus(options.messages.transport, options.device);
  const std::int64_t room = room_on(options.device);
  check_room(in_tier(Tier::device, planned), options.device, what_fits(options, session, room));
  check_host_room(in_tier(Tier::host, planned),
                  options.device == DeviceKind::cpu ? in_tier(Tier::device, planned).total() : 0,
                  ranks_on_machine(), "Use more machines, a smaller model, or --tier=disk:DIR.");
  const Tokens tokens = open_corpus(options.data);
  check_vocabulary(tokens, options.config().vocabulary);
  check_enough_tokens(tokens, options.batch(options.share(session.ranks())).sequence, options.global_batch);
  check_fits_data(options, tokens);
  check_checkpoints(options, tokens);
  const std::int64_t file = in_tier(Tier::disk, planned).total();
  if (file > 0)
    directory.emplace(options.offload.directory(), OffloadBytes{file, ranks_on_machine() * file}, session.rank(),
                      rank_on_machine() == 0);
}

/// Trains, validates, and tells.
int run(const Options& options, const Session& session)
{
  Report report(session.rank() == 0, options.report);
  begin_job(report, "07_offload", session.ranks());
  const Layout layout{.dp = session.ranks()};
  if (options.dry_run) {
    begin_report(report, layout, options.table, options, {});
    const TierBytes tiers = memory_plan(options, session);
    report_plan(report, in_tier(Tier::device, tiers), options);
    report_tier_plan(report, tiers, link_traffic(options.offload_plan(session)));
    const Traffic planned = step_traffic(options.plan(), options.gathers(), options.topology(), session.rank());
    report.block("traffic", {{"a step", format_bytes(planned.bytes), "", "bytes sent by rank 0"}});
    report.comment(describe_units(options.plan(), options.gathers()));
    return report.finish();
  }
  check_alike(options.table, open_corpus(options.data));
  const std::unique_ptr<State> state = make_state(options, session);
  const std::unique_ptr<Watchdog> watchdog = state->messages.make_watchdog();
  begin_report(report, layout, options.table, options, state->tokens);
  report_placement(report, session, options.device);
  if (!state->messages.carrier().empty()) report.comment(state->messages.carrier());
  report.comment(
      fmt::format("collectives by {}; {} units", describe_algorithm(state->world), state->buckets.size()));
  begin_steps(report);
  if (!options.trace.empty()) {
    state->time.record();
    state->ledger.record();
    state->tiers.record();
  }

  RunRecord record;
  record.first_step = resume(*state);
  record.from_scratch = !options.resume && options.initial.empty();
  state->adamw.round();
  gather_apart(*state);
  state->messages.begin_steps();
  std::vector<float> compared;  // this rank's parameters after --compare steps
  const std::int64_t steps = options.last_step(state->loader);
  for (std::int64_t step = record.first_step; step < steps; ++step) {
    record.steps.push_back(train_step(*state, step));
    report_step(report, step, record.steps.back());
    report.progress(step + 1, steps);
    if (step + 1 == options.compare) compared = own_parameters(*state);
    const bool last = step + 1 == steps;
    if (last || (options.evaluate_every > 0 && (step + 1) % options.evaluate_every == 0)) {
      record.validation.push_back({step + 1, evaluate(*state)});
      report_validation(report, record.validation.back());
    }
    if (checkpoint_is_due(options, step + 1, steps)) save(*state, step + 1);
  }
  const auto copy_own = [&](Range elements, const Tensor& to) {
    state->adamw.copy_own(elements, to, *state->stream);
  };
  record.digest = parameter_digest(state->table, state->segments, copy_own, state->room.tensor(), state->world);

  report_loss(report, record, state->config, state->tokens);
  if (options.gathering.persist > 0) {
    const std::string copy = replica_hash(*state->stream, state->parameters.apart());
    report.check("parameters that stay", "the same", copy, same_on_all_ranks(copy, state->world));
  }
  if (options.compare > 0) {
    const ReferenceRun reference = reference_run_on_rank_0(session, options, state->tokens.train);
    const ParameterDeviation deviation = parameter_deviation(
        state->table, state->segments, compared, reference.parameters, state->room.tensor(), state->world);
    if (session.rank() == 0) report_deviation(report, record, reference, deviation, options);
  }
  const TierBytes formula = memory_formula(options, session), most = memory_plan(options, session);
  report_memory(report, session, state->ledger, in_tier(Tier::device, formula), in_tier(Tier::device, most));
  report_tiers(report, state->ledger, formula);
  report_gpu_memory(report, state->ledger, options.device);
  report_traffic(report, "world", "a step", state->sent,
                 step_traffic(options.plan(), options.gathers(), state->world.topology(), session.rank()),
                 "(N-1)/N of all that is gathered and of M times the gradients");
  report_time(report, record, state->time, options);
  report_links(report, state->moved, link_traffic(state->offload), state->tiers.disk_alone(), record);
  state->messages.report_virtual_clock(report);
  if (!options.trace.empty()) {
    std::vector<TraceEvent> events = state->time.events();
    for (const TraceEvent& event : state->tiers.events()) events.push_back(event);
    write_trace(session, options.trace, events, state->ledger);
  }
  if (options.sample > 0) report.comment("sample:\n" + sample(*state));
  state->tiers.close();
  return report.finish();
}

}  // namespace
}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Options options;
  std::optional<OffloadDirectory> directory;
  return run_program(
      argc, argv, options.table, [&](const Session& session) { check(options, session, directory); },
      [&](Session& session) { return run(options, session); });
}
