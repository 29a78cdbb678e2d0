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

#include <algorithm>
#include <cmath>
#include <memory>
#include <omp.h>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/cuda/devices.hpp"
#include "common/device.hpp"
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
#include "lessons/03_ddp/stages.hpp"
#include "lessons/04_zero1/segments.hpp"
#include "lessons/04_zero1/sharded_adamw.hpp"
#include "lessons/04_zero1/shards.hpp"
#include "lessons/04_zero1/step_plan.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  OptionTable table{"04_zero1", "Sharded optimizer (ZeRO-1)"};
  MessageOptions messages;
  Bytes bucket{200'000};
  std::int64_t check_every = 10;

  Options()
  {
    declare(table, *this);
    declare(table, messages);
    table.add("Data parallelism", "bucket", bucket, "gradients that are sent together, at least; as 25MB");
    table.add("Data parallelism", "check-every", check_every,
              "steps between comparisons of the ranks' parameters; 0: only at the end");
  }

  /// The sequences of the global batch that one rank computes.
  std::int64_t share(int ranks) const { return global_batch / ranks; }
  /// Which ranks share a node.
  Topology topology() const { return topology_of_job(messages.ranks_per_node, device); }
  /// What formulas count.
  StepPlan plan() const
  {
    const Arithmetic sums(arithmetic);
    const ParameterTable parameters(config());
    return {parameters,
            make_buckets(parameters, gradients, bucket.value),
            gradients,
            precision,
            sums.keeps_tied_apart(),
            messages.algorithm(sums.default_collectives())};
  }
};

// ---- State -----------------------------------------------------------------------------------------------------------

/// What this rank holds.
struct State {
  State(const Options& o, const Session& s) : options(o), session(s) {}

  const Options& options;                                                                  // what was asked for
  const Session& session;                                                                  // rank r of N
  ModelConfig config = options.config();                                                   // L, H, C, V
  Range share = Partition(options.global_batch, session.ranks()).segment(session.rank());  // of the global batch
  BatchShape batch = options.batch(options.share(session.ranks()));                        // G, B, T
  ActivationShape shape = options.activation_shape(options.share(session.ranks()));        // of one micro-batch

  TimeLedger time;                                               // where the time goes
  MemoryLedger ledger{options.memory_limit.value};               // counts every buffer below
  std::unique_ptr<Device> device = make_device(options.device);  // where everything lies
  std::unique_ptr<Stream> stream = device->make_stream();        // the order in which it works
  DeviceMemory memory{device.get(), &ledger};                    // the device's memory, counted
  Arithmetic arithmetic{options.arithmetic, options.tf32};       // the order of sums
  Messages messages{options.messages, memory, *stream, time};    // who counts them and who watches
  Group world{"world", Communicator::world(), messages.setup(arithmetic.default_collectives())};  // all N ranks
  std::unique_ptr<Kernels> kernels = arithmetic.make_kernels(memory, *stream);  // what the pieces compute with

  Tokens tokens = open_corpus(options.data);              // the text
  Loader loader{tokens.train, options.loader_options()};  // deals out its windows
  Batch host_batch;                                       // windows on their way to the device
  Schedule schedule = options.schedule_over(loader);      // the learning rate of each step

  ParameterTable table{config};                                             // what stands where in the flat vectors
  Model model{{config, kernels.get(), {}, options.dropout, options.seed}};  // the chain
  Buffer parameters{memory, Category::parameters, shape.type, {table.elements()}, "parameters"};  // (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());                               // views of them
  std::unique_ptr<GradientSum> gradients =                                                        // (P)
      arithmetic.make_gradient_sum(*kernels, *stream, world.often_reduced(),
                                   gradient_layout(table, options.gradients));
  std::vector<Bucket> buckets = make_buckets(table, options.gradients, options.bucket.value);  // in backward order

  std::vector<Segment> segments = make_segments(buckets, world.ranks());  // of these: who owns what
  std::vector<Range> own = segments_of(world.rank(), segments);           // this rank: one of each bucket
  Buffer room{memory, Category::communication, DType::f32, {block_elements(segments)}, "a block"};   // of any owner
  ShardedAdamW adamw{memory, *stream, table, own, slices(parameters.tensor(), own), options.adamw};  // (P/N) states

  CommunicationQueue queue{world, time};          // sends them meanwhile
  std::vector<Pending> pending;                   // buckets on their way
  Traffic sent;                                   // by one step's gradients and parameters
  Workspace work{memory, config, shape};          // scratch of both passes
  Activations kept{memory, config, shape, work};  // from a forward pass to its backward pass
};

/// Copies every parameter from the rank that owns it to all others.
void gather_parameters(State& state)
{
  const auto span = state.time.span(Work::exposed, "gathering parameters");
  for (const Bucket& bucket : state.buckets)
    all_gather(state.parameters.tensor().slice(bucket.elements), state.world);
}

/// A state in which what this rank owns has its initial values.
std::unique_ptr<State> make_state(const Options& options, const Session& session)
{
  omp_set_num_threads(options.threads);
  auto state = std::make_unique<State>(options, session);
  for (const Shard& mine : state->adamw.shards())
    initialize_parameters(*state->stream, mine.parameters, state->table, state->config, options.seed,
                          mine.owned.first);
  return state;
}

/// The same bytes by category, from the sizes alone.
CategoryBytes memory_formula(const Options& options, const Session& session)
{
  const ModelConfig config = options.config();
  const ParameterTable table(config);
  const std::int64_t share = options.share(session.ranks());
  const ActivationShape shape = options.activation_shape(share);
  const std::int64_t micro_batches = share / shape.B;
  CategoryBytes bytes =
      Arithmetic(options.arithmetic).gradient_bytes(gradient_layout(table, options.gradients), micro_batches);
  bytes[Category::parameters] = bytes_of(options.precision) * table.elements();
  bytes[Category::optimizer] = adamw_bytes(elements_of(owned_segments(options.plan(), session)), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  bytes[Category::communication] = message_bytes(options.plan(), options.topology(), session.rank()) +
                                   host_values_bytes(options.device, session.ranks());
  return bytes;
}

// ---- Sums of gradients ----------------------------------------------------------------------------------------------

/// Starts the sum over the ranks of the bucket that is complete with @p unit, if there is one: each rank gets its segment.
void send_if_full(State& state, std::int64_t unit, const MicroBatch& batch)
{
  const bool last = batch.rows.sequences.end() == state.share.end();  // before that the sums are not final
  if (!last) return;
  for (const Bucket& bucket : state.buckets) {
    if (bucket.units.first != unit) continue;
    const std::vector<Tensor> gradients = state.gradients->finish(bucket.elements);
    state.pending.push_back(state.queue.start(fmt::format("bucket of unit {}", unit), [gradients](Group& world) {
      reduce_scatter_sum(gradients[0], world);
      for (std::size_t i = 1; i < gradients.size(); ++i) all_reduce_sum(gradients[i], world);  // what is kept apart
    }));
  }
}

/// Waits until the gradients of this rank's segments are summed over the ranks, and gives these. What other ranks own is
/// left behind half-way.
std::vector<Tensor> sum_gradients(State& state)
{
  const auto span = state.time.span(Work::exposed, "summing gradients");
  for (Pending& bucket : state.pending) bucket.wait();
  state.pending.clear();
  return slices(state.gradients->total(), state.own);
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
    const BranchTensors& p = state.weights.branches[i];
    branch.normalise(kept.branches[i], p);
    branch.apply(output, kept.branches[i], p, batch);
    branch.add(kept.stream(i + 1), kept.branches[i], output, p, batch);
    charge(state, branch.unit(), 1);
  }
}

/// The sum of losses of a micro-batch; what its backward pass needs is kept.
LossSum forward(State& state, const MicroBatch& batch)
{
  const Model& model = state.model;
  const ModelTensors& p = state.weights;
  const Activations& kept = state.kept;
  const Tensor& output = state.work.output;

  model.embedding.lookup(output, p.embedding, batch);
  model.embedding.add(kept.stream(0), output, p.embedding, batch);
  forward_branches(state, 0, model.branches.size(), batch);
  charge(state, unit_count(state.config) - 1, 1);
  return model.head.forward(kept.head, p.head, batch);
}

/// Adds the gradient of that sum to @p d; what is final on the way is sent.
void backward(State& state, const ModelTensors& d, const MicroBatch& batch)
{
  const Model& model = state.model;
  const HeadTensors& p_head = state.weights.head;
  const Activations& kept = state.kept;
  const Tensor &dx = state.work.dstream, &output = state.work.output, &wide = state.work.wide;

  const std::int64_t last = unit_count(state.config) - 1;
  model.head.apply_backward(output, d.head, kept.head, p_head, batch);
  state.stream->zero(dx);
  model.head.normalise_backward(dx, d.head, output, kept.head, p_head, batch);
  charge(state, last, 2);
  send_if_full(state, last, batch);

  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, i - 1, i + 1, batch);

    const Branch& branch = model.branches[i];
    const BranchTensors& p = state.weights.branches[i];
    const Tensor doutput = branch.add_backward(d.branches[i], dx, output, batch);
    branch.apply_backward(output, d.branches[i], doutput, wide, kept.branches[i], p, batch);
    branch.normalise_backward(dx, d.branches[i], output, kept.branches[i], p, batch);
    charge(state, branch.unit(), 2);
    send_if_full(state, branch.unit(), batch);
  }
  model.embedding.backward(d.embedding, dx, batch);
  send_if_full(state, 0, batch);
}

// ---- Training --------------------------------------------------------------------------------------------------------

/// One optimizer step over the global batch; this rank's share of it in passes of B.
StepReport train_step(State& state, std::int64_t step)
{
  const Stopwatch clock;
  const auto span = state.time.span(Work::compute, "training step");
  LossSum loss;
  state.gradients->clear();
  const Traffic before = state.messages.traffic().total();
  for (std::int64_t first = state.share.first; first < state.share.end(); first += state.batch.micro_batch) {
    const Range sequences{first, state.batch.micro_batch};
    {
      const auto reading = state.time.span(Work::io, "reading tokens");
      state.loader.load(step, sequences, state.host_batch);
    }
    const MicroBatch batch = place(state.kept, *state.stream, state.host_batch, sequences, step);
    const GradientTensors d = state.gradients->begin(sequences);
    loss += forward(state, batch);
    backward(state, model_tensors(state.table, d.flat, d.tied), batch);
    state.gradients->end(sequences);
  }

  const std::vector<Tensor> gradients = sum_gradients(state);
  state.sent = state.messages.traffic().total() - before;
  all_reduce_sum(loss, state.world);

  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  const double norm = std::sqrt(squared_norm(*state.kernels, gradients, state.world)) / valid_tokens;
  const double learning_rate = state.schedule.at(step);
  check_finite(step, loss.mean(), norm, *state.kernels, state.adamw.shards(), gradients, state.world);
  const Traffic updating = state.messages.traffic().total();
  // BEGIN EXERCISE 04.3 points=10 "The update between the halves of an all-reduce: each rank updates what it owns, from "
  //     "the gradients of its segments, with the learning rate and clipping as before; then all ranks have all parameters."
  state.adamw.step(*state.kernels, gradients, learning_rate, clip_factor(norm, state.options.clip) / valid_tokens);
  gather_parameters(state);
  // END EXERCISE
  state.sent += state.messages.traffic().total() - updating;
  state.stream->synchronise();
  state.messages.end_step();
  return {loss.mean(), norm, learning_rate, clock.seconds()};
}

/// The mean loss over the whole validation split; each rank takes every N-th pass.
double evaluate(State& state)
{
  const auto span = state.time.span(Work::compute, "validation");
  const Loader validation(state.tokens.validation, state.options.loader_options());
  LossSum loss;
  const std::int64_t B = state.batch.micro_batch;
  for (std::int64_t first = state.session.rank() * B; first < validation.windows();
       first += state.session.ranks() * B) {
    const Range windows = intersect({first, B}, {0, validation.windows()});
    validation.load_in_order(windows, state.host_batch);
    pad(state.host_batch, B);
    MicroBatch batch = place(state.kept, *state.stream, state.host_batch, {0, B}, 0);
    batch.training = false;
    loss += forward(state, batch);
  }
  all_reduce_sum(loss, state.world);
  return loss.mean();
}

/// Generates text, one token after the other, from the last T of those before it; the same on all ranks.
std::string sample(State& state)
{
  const auto span = state.time.span(Work::compute, "sampling");
  const std::shared_ptr<const Tokenizer> tokenizer = state.tokens.tokenizer;
  Generator generator(state.memory, *state.stream, state.model, state.weights, state.batch.sequence);
  const std::vector<Token> prompt = tokenizer->encode("\n");
  return tokenizer->decode(generator.generate(prompt, state.options.sample, state.options.sampling));
}

// ---- Checkpoints -----------------------------------------------------------------------------------------------------

/// Saves the state after @p step steps; each rank what it owns, one after the other. The checkpoint before it stays until
/// this one is complete.
void save(State& state, std::int64_t step)
{
  const auto span = state.time.span(Work::io, "saving a checkpoint");
  const std::string& path = state.options.checkpoint;
  if (state.session.rank() == 0)
    create_checkpoint(path, {.config = state.config,
                             .step = step,
                             .updates = state.adamw.updates(),
                             .options = run_options(state.options, state.tokens)});
  write_in_turn(state.session, path, *state.stream, state.adamw.shards());
  if (state.session.rank() == 0) commit_checkpoint(path);
}

/// Goes on from what --resume or --initial names, if one of them is given; this rank reads what it owns.
/// @return  the steps that were made before.
std::int64_t resume(State& state)
{
  const Options& o = state.options;
  const auto span = state.time.span(Work::io, "reading a checkpoint");
  if (!o.initial.empty())  // the parameters, and nothing else
    for (const Shard& mine : state.adamw.shards())
      read_checkpoint(o.initial, *state.stream, {state.table, mine.owned, mine.parameters, {}, {}});
  if (!o.resume) return 0;
  const CheckpointInfo saved = check_checkpoint(o.checkpoint, "--checkpoint=" + o.checkpoint);
  for (const Shard& mine : state.adamw.shards()) read_checkpoint(o.checkpoint, *state.stream, mine);
  state.adamw.resume(saved.updates);
  return saved.step;
}

// ---- Run -------------------------------------------------------------------------------------------------------------

/// Refuses what cannot be done, before anything is done.
void check(const Options& options, const Session& session)
{
  check_share(options.global_batch, session.ranks());
  check_bucket(options.bucket.value);
  if (options.check_every < 0)
    throw UserError(fmt::format("--check-every={} is out of range.", options.check_every),
                    "Use a number of steps, or 0.");
  check_options(options, {.dp = session.ranks()});
  const Arithmetic arithmetic(options.arithmetic);
  const Algorithm fallback = arithmetic.default_collectives();
  check_options(options.messages, fallback, options.device);
  arithmetic.check_collectives(options.messages.algorithm(fallback));
  const CategoryBytes planned = memory_formula(options, session);
  const std::int64_t limit = options.memory_limit.value;
  const auto remedy = [&](std::int64_t room) {
    return what_fits(Stage::zero1, options, options.messages, options.bucket.value, session, planned, room);
  };
  check_memory_limit(planned, limit, remedy(limit));
  if (options.dry_run) return;
  check_device(options.device);
  check_own_gpus(options.messages.transport, options.device);
  check_room(planned, options.device, remedy(room_on(options.device)));
  const Tokens tokens = open_corpus(options.data);
  check_vocabulary(tokens, options.config().vocabulary);
  check_enough_tokens(tokens, options.batch(options.share(session.ranks())).sequence, options.global_batch);
  check_fits_data(options, tokens);
  check_checkpoints(options, tokens);
}

/// Trains, validates, and tells.
int run(const Options& options, const Session& session)
{
  Report report(session.rank() == 0, options.report);
  begin_job(report, "04_zero1", session.ranks());
  const Layout layout{.dp = session.ranks()};
  if (options.dry_run) {
    begin_report(report, layout, options.table, options, {});
    report_plan(report, memory_formula(options, session), options);
    const Traffic planned = step_traffic(options.plan(), options.topology(), session.rank());
    report.block("traffic", {{"a step", format_bytes(planned.bytes), "", "bytes sent by rank 0"}});
    return report.finish();
  }
  check_alike(options.table, open_corpus(options.data));
  const std::unique_ptr<State> state = make_state(options, session);
  const std::unique_ptr<Watchdog> watchdog = state->messages.make_watchdog();
  begin_report(report, layout, options.table, options, state->tokens);
  report_placement(report, session, options.device);
  if (!state->messages.carrier().empty()) report.comment(state->messages.carrier());
  report.comment(
      fmt::format("collectives by {}; {} buckets", describe_algorithm(state->world), state->buckets.size()));
  begin_steps(report);
  if (!options.trace.empty()) {
    state->time.record();
    state->ledger.record();
  }

  RunRecord record;
  record.first_step = resume(*state);
  record.from_scratch = !options.resume && options.initial.empty();
  state->adamw.round(*state->kernels);
  gather_parameters(*state);
  state->messages.begin_steps();
  std::vector<float> compared;  // this rank's parameters after --compare steps
  const std::int64_t steps = options.last_step(state->loader);
  for (std::int64_t step = record.first_step; step < steps; ++step) {
    record.steps.push_back(train_step(*state, step));
    report_step(report, step, record.steps.back());
    report.progress(step + 1, steps);
    if (step + 1 == options.compare) compared = to_host(*state->stream, state->adamw.shards());
    const bool last = step + 1 == steps;
    if (options.check_every > 0 && (step + 1) % options.check_every == 0)
      check_replicas(*state->stream, state->parameters.tensor(), fmt::format("after step {}", step), state->world);
    if (last || (options.evaluate_every > 0 && (step + 1) % options.evaluate_every == 0)) {
      record.validation.push_back({step + 1, evaluate(*state)});
      report_validation(report, record.validation.back());
    }
    if (checkpoint_is_due(options, step + 1, steps)) save(*state, step + 1);
  }
  record.digest = parameter_digest(state->segments, state->adamw.shards(), state->room.tensor(), state->world);

  report_loss(report, record, state->config, state->tokens);
  const std::string copy = replica_hash(*state->stream, state->parameters.tensor());
  report.check("parameters on every rank", "the same", copy, same_on_all_ranks(copy, state->world));
  if (options.compare > 0) {
    const ReferenceRun reference = reference_run_on_rank_0(session, options, state->tokens.train);
    const ParameterDeviation deviation = parameter_deviation(
        state->table, state->segments, compared, reference.parameters, state->room.tensor(), state->world);
    if (session.rank() == 0) report_deviation(report, record, reference, deviation, options);
  }
  report_memory(report, session, state->ledger, memory_formula(options, session));
  report_gpu_memory(report, state->ledger, options.device);
  report_traffic(report, "world", "a step", state->sent,
                 step_traffic(options.plan(), state->world.topology(), session.rank()),
                 "(N-1)/N of the gradients and of the parameters");
  report_time(report, record, state->time, options);
  state->messages.report_virtual_clock(report);
  if (!options.trace.empty()) write_trace(session, options.trace, state->time.events(), state->ledger);
  if (options.sample > 0) report.comment("sample:\n" + sample(*state));
  return report.finish();
}

}  // namespace
}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Options options;
  return run_program(
      argc, argv, options.table, [&](const Session& session) { check(options, session); },
      [&](Session& session) { return run(options, session); });
}
