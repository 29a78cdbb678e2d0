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
#include "lessons/03_ddp/replicas.hpp"
#include "lessons/03_ddp/stages.hpp"
#include "lessons/03_ddp/sum_plan.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  OptionTable table{"03_ddp", "Data parallelism (DDP)"};
  MessageOptions messages;
  Strategy strategy = Strategy::overlapped;
  Bytes bucket{200'000};
  std::int64_t check_every = 10;

  Options()
  {
    declare(table, *this);
    declare(table, messages);
    table.add_choice<Strategy>("Data parallelism", "strategy", strategy,
                               {{"per-tensor", Strategy::per_tensor},
                                {"flat", Strategy::flat},
                                {"bucketed", Strategy::bucketed},
                                {"overlapped", Strategy::overlapped}},
                               "when gradients are summed over the ranks");
    table.add("Data parallelism", "bucket", bucket, "gradients that are sent together, at least; as 25MB");
    table.add("Data parallelism", "check-every", check_every,
              "steps between comparisons of the ranks' parameters; 0: only at the end");
  }

  /// The sequences of the global batch that one rank computes.
  std::int64_t share(int ranks) const { return global_batch / ranks; }
  /// Which ranks share a node.
  Topology topology() const { return topology_of_job(messages.ranks_per_node, device); }
  /// What formulas count.
  SumPlan plan() const
  {
    const Arithmetic sums(arithmetic);
    return {config(),
            gradients,
            strategy,
            bucket.value,
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
  CommunicationQueue queue{world, time};                                                  // sends them meanwhile
  std::vector<Pending> pending;                                                           // buckets on their way
  Traffic sent;                                                                           // by one step's gradients
  AdamW adamw{memory, *stream, table, {0, table.elements()}, shape.type, options.adamw};  // (P) two or three times
  Tensor master = adamw.master(parameters.tensor());  // (P) f32: what is updated; in f32 the parameters themselves
  Workspace work{memory, config, shape};              // scratch of both passes
  Activations kept{memory, config, shape, work};      // from a forward pass to its backward pass
};

/// A state whose parameters have their initial values, those of rank 0.
std::unique_ptr<State> make_state(const Options& options, const Session& session)
{
  omp_set_num_threads(options.threads);
  auto state = std::make_unique<State>(options, session);
  if (session.rank() == 0)
    initialize_parameters(*state->stream, state->master, state->table, state->config, options.seed);
  broadcast(state->master, 0, state->world);
  state->adamw.round(*state->kernels, state->parameters.tensor());
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
  bytes[Category::optimizer] = adamw_bytes(table.elements(), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  bytes[Category::communication] = scratch_of_run(options.plan(), options.topology(), session.rank()) +
                                   host_values_bytes(options.device, session.ranks());
  return bytes;
}

// ---- Sums of gradients ----------------------------------------------------------------------------------------------

/// With `overlapped`: starts the sum over the ranks of the bucket that is complete with @p unit, if there is one.
void send_if_full(State& state, std::int64_t unit, const MicroBatch& batch)
{
  if (state.options.strategy != Strategy::overlapped) return;
  // BEGIN EXERCISE 03.3 points=10 "Overlap, and accumulation without extra traffic: in the last micro-batch of this "
  //     "rank's share, and in no other, the bucket whose first unit is the one given is complete: finish its elements, "
  //     "start on the queue the sums over the ranks of the tensors that this gives, and keep what is to be waited for."
  const bool last = batch.rows.sequences.end() == state.share.end();  // before that the sums are not final
  if (!last) return;
  for (const Bucket& bucket : state.buckets) {
    if (bucket.units.first != unit) continue;
    const std::vector<Tensor> gradients = state.gradients->finish(bucket.elements);
    state.pending.push_back(state.queue.start(fmt::format("bucket of unit {}", unit), [gradients](Group& world) {
      for (const Tensor& gradient : gradients) all_reduce_sum(gradient, world);
    }));
  }
  // END EXERCISE
}

/// Sums the gradients over the ranks; with `overlapped`, waits until they are.
void sum_gradients(State& state)
{
  const auto span = state.time.span(Work::exposed, "summing gradients");
  // BEGIN EXERCISE 03.1 points=10 "Sums over the ranks: after this call the gradients are the sums over all ranks. With "
  //     "`overlapped`, wait for what is on its way, and forget it. Else GradientSum::sums() gives this rank's sums: all "
  //     "elements, and where the tied embedding's second gradient is kept apart, that too. Add them up over the ranks, "
  //     "tensor by tensor, all at once, or bucket by bucket, as the strategy says."
  for (Pending& bucket : state.pending) bucket.wait();
  state.pending.clear();
  if (state.options.strategy == Strategy::overlapped) return;

  const std::vector<Tensor> sums = state.gradients->sums();  // all elements; and the tied ones, if kept apart
  std::vector<Range> pieces;
  if (state.options.strategy == Strategy::per_tensor)
    for (const Parameter& p : state.table.entries()) pieces.push_back(p.elements);
  else if (state.options.strategy == Strategy::bucketed)
    for (const Bucket& bucket : state.buckets) pieces.push_back(bucket.elements);
  else
    pieces.push_back({0, state.table.elements()});
  for (const Range& piece : pieces) all_reduce_sum(sums[0].slice(piece), state.world);
  if (sums.size() > 1) all_reduce_sum(sums[1], state.world);
  // END EXERCISE
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

  sum_gradients(state);
  state.sent = state.messages.traffic().total() - before;
  all_reduce_sum(loss, state.world);

  const Tensor gradient = state.gradients->total();
  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  const double norm = std::sqrt(state.kernels->squared_norm(gradient).value()) / valid_tokens;
  const double learning_rate = state.schedule.at(step);
  check_finite(step, loss.mean(), norm, *state.kernels, state.table, gradient, state.master);
  state.adamw.step(*state.kernels, state.parameters.tensor(), gradient, learning_rate,
                   clip_factor(norm, state.options.clip) / valid_tokens);
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

/// What this rank holds of the model: all of it, as every rank does.
Shard shard(State& state)
{
  return {state.table,
          {0, state.table.elements()},
          state.master,
          state.adamw.first_moments(),
          state.adamw.second_moments()};
}

/// Saves the state after @p step steps, on rank 0. The checkpoint before it stays until this one is complete.
void save(State& state, std::int64_t step)
{
  if (state.session.rank() != 0) return;
  const auto span = state.time.span(Work::io, "saving a checkpoint");
  const std::string& path = state.options.checkpoint;
  create_checkpoint(path, {.config = state.config,
                           .step = step,
                           .updates = state.adamw.updates(),
                           .options = run_options(state.options, state.tokens)});
  write_checkpoint(path, *state.stream, shard(state));
  commit_checkpoint(path);
}

/// Goes on from what --resume or --initial names, if one of them is given.
/// @return  the steps that were made before.
std::int64_t resume(State& state)
{
  const Options& o = state.options;
  const auto span = state.time.span(Work::io, "reading a checkpoint");
  Shard all = shard(state);
  if (!o.initial.empty()) {  // the parameters, and nothing else
    all.first_moments = all.second_moments = {};
    read_checkpoint(o.initial, *state.stream, all);
    state.adamw.round(*state.kernels, state.parameters.tensor());
  }
  if (!o.resume) return 0;
  const CheckpointInfo saved = check_checkpoint(o.checkpoint, "--checkpoint=" + o.checkpoint);
  read_checkpoint(o.checkpoint, *state.stream, all);
  state.adamw.round(*state.kernels, state.parameters.tensor());
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
    return what_fits(Stage::ddp, options, options.messages, options.bucket.value, session, planned, room);
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
  begin_job(report, "03_ddp", session);
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
    state->queue.record();
    state->ledger.record();
  }

  RunRecord record;
  record.first_step = resume(*state);
  record.from_scratch = !options.resume && options.initial.empty();
  state->messages.begin_steps();
  std::vector<float> compared;  // the parameters after --compare steps
  const std::int64_t steps = options.last_step(state->loader);
  for (std::int64_t step = record.first_step; step < steps; ++step) {
    record.steps.push_back(train_step(*state, step));
    report_step(report, step, record.steps.back());
    report.progress(step + 1, steps);
    if (step + 1 == options.compare) compared = to_host<float>(*state->stream, state->master);
    const bool last = step + 1 == steps;
    if (options.check_every > 0 && (step + 1) % options.check_every == 0)
      check_replicas(*state->stream, state->master, fmt::format("after step {}", step), state->world);
    if (last || (options.evaluate_every > 0 && (step + 1) % options.evaluate_every == 0)) {
      record.validation.push_back({step + 1, evaluate(*state)});
      report_validation(report, record.validation.back());
    }
    if (checkpoint_is_due(options, step + 1, steps)) save(*state, step + 1);
  }
  record.digest = parameter_digest(*state->stream, state->table, state->master);

  report_loss(report, record, state->config, state->tokens);
  report.check("digest on every rank", "the same", record.digest.substr(0, 12),
               same_on_all_ranks(record.digest, state->world));
  if (options.compare > 0 && session.rank() == 0) {
    const ReferenceRun reference = reference_run(options, state->tokens.train);
    report_deviation(report, record, reference, parameter_deviation(compared, reference.parameters), options);
  }
  report_memory(report, session, state->ledger, memory_formula(options, session));
  report_gpu_memory(report, state->ledger, options.device);
  report_traffic(report, "world", "a step", state->sent,
                 step_traffic(options.plan(), state->world.topology(), session.rank()),
                 "2 (N-1)/N of the gradients");
  report_time(report, record, state->time, options);
  state->messages.report_virtual_clock(report);
  if (!options.trace.empty())
    write_trace(session, options.trace, all_events(state->time, state->queue.time()), state->ledger);
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
