// Lesson 01: GPT-2 on a single device
//
// Builds on:    nothing
// New idea:     a GPT-2 is a chain of residual branches; training it is a loop over them, forwards and backwards, and
//               then AdamW. A step may take its batch in several passes (gradient accumulation), and may forget
//               activations and compute them again (recomputation).
// Memory:       16 P bytes of model state (f32: parameter 4, gradient 4, two moments 8); in bf16 2 + 4 + 12, or 2 + 2 + 12
//               with --gradients=bf16 (parameter, gradient, master weight and two moments). And the activations of one
//               micro-batch, of s = 4 or 2 bytes: s R (16 L C + 2 C + V) + 4 R (L (4 + H) + 7) bytes, R = B T
// Traffic:      none: one device talks to nobody
// Paper:        Radford et al. 2019; Loshchilov and Hutter 2019 (AdamW); Chen et al. 2016 (recomputation);
//               Micikevicius et al. 2018 (master weights)
//
// Sample runs:  build/lessons/01_single_device --steps=5
//               mpirun -np 1 build/lessons/01_single_device --steps=3 --micro-batch=4 --recompute=block
//               build/lessons/01_single_device --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//               build/lessons/01_single_device --steps=3 --threads=2 --sample=40 --top-k=5
//               build/lessons/01_single_device --steps=10 --compare=10
//               build/lessons/01_single_device --steps=10 --compare=10 --precision=bf16 --micro-batch=4
//               build/lessons/01_single_device --steps=3 --precision=bf16 --gradients=bf16
//               rm -f build/nano.h5; build/lessons/01_single_device --steps=3 --checkpoint=build/nano.h5
//               build/lessons/01_single_device --steps=5 --checkpoint=build/nano.h5 --resume
//               build/lessons/01_single_device --model=gpt2-xl --dry-run
//             * build/lessons/01_single_device --device=cuda --steps=20      (* needs a GPU)
// Expect:       a first loss of about ln 256 = 5.545, then a fall towards the floor of the data; memory = formula.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <algorithm>
#include <cmath>
#include <memory>
#include <omp.h>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/cuda/devices.hpp"
#include "common/device.hpp"
#include "common/job_report.hpp"
#include "common/options.hpp"
#include "common/placement.hpp"
#include "common/program.hpp"
#include "common/report.hpp"
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

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  OptionTable table{"01_single_device", "GPT-2 on a single device"};

  Options() { declare(table, *this); }
};

// ---- State -----------------------------------------------------------------------------------------------------------

/// What this rank holds.
struct State {
  explicit State(const Options& o) : options(o) {}

  const Options& options;                                                  // what was asked for
  ModelConfig config = options.config();                                   // L, H, C, V
  BatchShape batch = options.batch(options.global_batch);                  // G, B, T
  ActivationShape shape = options.activation_shape(options.global_batch);  // of one micro-batch

  TimeLedger time;                                                              // where the time goes
  MemoryLedger ledger{options.memory_limit.value};                              // counts every buffer below
  std::unique_ptr<Device> device = make_device(options.device);                 // where everything lies
  std::unique_ptr<Stream> stream = device->make_stream();                       // the order in which it works
  DeviceMemory memory{device.get(), &ledger};                                   // the device's memory, counted
  Arithmetic arithmetic{options.arithmetic, options.tf32};                      // the order of sums
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
      arithmetic.make_gradient_sum(*kernels, *stream, memory, gradient_layout(table, options.gradients));
  AdamW adamw{memory, *stream, table, {0, table.elements()}, shape.type, options.adamw};  // (P) two or three times
  Tensor master = adamw.master(parameters.tensor());  // (P) f32: what is updated; in f32 the parameters themselves
  Workspace work{memory, config, shape};              // scratch of both passes
  Activations kept{memory, config, shape, work};      // from a forward pass to its backward pass
};

/// A state whose parameters have their initial values.
std::unique_ptr<State> make_state(const Options& options)
{
  omp_set_num_threads(options.threads);
  auto state = std::make_unique<State>(options);
  initialize_parameters(*state->stream, state->master, state->table, state->config, options.seed);
  state->adamw.round(*state->kernels, state->parameters.tensor());
  return state;
}

/// The same bytes by category, from the sizes alone.
CategoryBytes memory_formula(const Options& options)
{
  const ModelConfig config = options.config();
  const ParameterTable table(config);
  const ActivationShape shape = options.activation_shape(options.global_batch);
  const std::int64_t micro_batches = options.global_batch / shape.B;
  CategoryBytes bytes =
      Arithmetic(options.arithmetic).gradient_bytes(gradient_layout(table, options.gradients), micro_batches);
  bytes[Category::parameters] = bytes_of(options.precision) * table.elements();
  bytes[Category::optimizer] = adamw_bytes(table.elements(), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  return bytes;
}

// ---- Forward and backward pass ---------------------------------------------------------------------------------------

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
  return model.head.forward(kept.head, p.head, batch);
}

/// Adds the gradient of that sum to @p d.
void backward(State& state, const ModelTensors& d, const MicroBatch& batch)
{
  const Model& model = state.model;
  const ModelTensors& p = state.weights;
  const Activations& kept = state.kept;
  const Tensor &dx = state.work.dstream, &output = state.work.output, &wide = state.work.wide;

  model.head.apply_backward(output, d.head, kept.head, p.head, batch);
  state.stream->zero(dx);
  model.head.normalise_backward(dx, d.head, output, kept.head, p.head, batch);

  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, i - 1, i + 1, batch);

    const Branch& branch = model.branches[i];
    const Tensor doutput = branch.add_backward(d.branches[i], dx, output, batch);
    branch.apply_backward(output, d.branches[i], doutput, wide, kept.branches[i], p.branches[i], batch);
    branch.normalise_backward(dx, d.branches[i], output, kept.branches[i], p.branches[i], batch);
  }
  model.embedding.backward(d.embedding, dx, batch);
}

// ---- Training --------------------------------------------------------------------------------------------------------

/// One optimizer step over the global batch, in G / B passes.
StepReport train_step(State& state, std::int64_t step)
{
  const Stopwatch clock;
  const auto span = state.time.span(Work::compute, "training step");
  LossSum loss;
  state.gradients->clear();
  for (std::int64_t first = 0; first < state.batch.global_batch; first += state.batch.micro_batch) {
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

  const Tensor gradient = state.gradients->total();
  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  const double norm = std::sqrt(state.kernels->squared_norm(gradient).value()) / valid_tokens;
  const double learning_rate = state.schedule.at(step);
  check_finite(step, loss.mean(), norm, *state.kernels, state.table, gradient, state.master);
  state.adamw.step(*state.kernels, state.parameters.tensor(), gradient, learning_rate,
                   clip_factor(norm, state.options.clip) / valid_tokens);
  state.stream->synchronise();
  return {loss.mean(), norm, learning_rate, clock.seconds()};
}

/// The mean loss over the whole validation split.
double evaluate(State& state)
{
  const auto span = state.time.span(Work::compute, "validation");
  const Loader validation(state.tokens.validation, state.options.loader_options());
  LossSum loss;
  for (std::int64_t first = 0; first < validation.windows(); first += state.batch.micro_batch) {
    const Range windows = intersect({first, state.batch.micro_batch}, {0, validation.windows()});
    validation.load_in_order(windows, state.host_batch);
    pad(state.host_batch, state.batch.micro_batch);
    MicroBatch batch = place(state.kept, *state.stream, state.host_batch, {0, state.batch.micro_batch}, 0);
    batch.training = false;
    loss += forward(state, batch);
  }
  return loss.mean();
}

/// Generates text, one token after the other, from the last T of those before it.
std::string sample(State& state)
{
  const auto span = state.time.span(Work::compute, "sampling");
  const std::shared_ptr<const Tokenizer> tokenizer = state.tokens.tokenizer;
  Generator generator(state.memory, *state.stream, state.model, state.weights, state.batch.sequence);
  const std::vector<Token> prompt = tokenizer->encode("\n");
  return tokenizer->decode(generator.generate(prompt, state.options.sample, state.options.sampling));
}

// ---- Checkpoints -----------------------------------------------------------------------------------------------------

/// What this rank holds of the model: all of it.
Shard shard(State& state)
{
  return {state.table,
          {0, state.table.elements()},
          state.master,
          state.adamw.first_moments(),
          state.adamw.second_moments()};
}

/// Saves the state after @p step steps. The checkpoint before it stays until this one is complete.
void save(State& state, std::int64_t step)
{
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
  if (session.ranks() != 1)
    throw UserError(fmt::format("lesson 01 trains on one device, and was started with {} ranks.", session.ranks()),
                    "Start it without mpirun or with -np 1.");
  check_options(options, {});
  const CategoryBytes planned = memory_formula(options);
  const std::int64_t limit = options.memory_limit.value;
  const GradientLayout sums = gradient_layout(ParameterTable(options.config()), options.gradients);
  check_memory_limit(planned, limit, what_fits(options, options.global_batch, sums, planned, limit));
  if (options.dry_run) return;
  check_device(options.device);
  check_room(planned, options.device,
             what_fits(options, options.global_batch, sums, planned, room_on(options.device)));
  const Tokens tokens = open_corpus(options.data);
  check_vocabulary(tokens, options.config().vocabulary);
  check_enough_tokens(tokens, options.batch(options.global_batch).sequence, options.global_batch);
  check_fits_data(options, tokens);
  check_checkpoints(options, tokens);
}

/// Trains, validates, and tells.
int run(const Options& options, const Session& session)
{
  Report report(session.rank() == 0, options.report);
  begin_job(report, "01_single_device", session);
  if (options.dry_run) {
    begin_report(report, {}, options.table, options, {});
    report_plan(report, memory_formula(options), options);
    return report.finish();
  }
  const std::unique_ptr<State> state = make_state(options);
  begin_report(report, {}, options.table, options, state->tokens);
  report_placement(report, session, options.device);
  begin_steps(report);
  if (!options.trace.empty()) {
    state->time.record();
    state->ledger.record();
  }

  RunRecord record;
  record.first_step = resume(*state);
  record.from_scratch = !options.resume && options.initial.empty();
  std::vector<float> compared;  // the parameters after --compare steps
  const std::int64_t steps = options.last_step(state->loader);
  for (std::int64_t step = record.first_step; step < steps; ++step) {
    record.steps.push_back(train_step(*state, step));
    report_step(report, step, record.steps.back());
    report.progress(step + 1, steps);
    if (step + 1 == options.compare) compared = to_host<float>(*state->stream, state->master);
    const bool last = step + 1 == steps;
    if (last || (options.evaluate_every > 0 && (step + 1) % options.evaluate_every == 0)) {
      record.validation.push_back({step + 1, evaluate(*state)});
      report_validation(report, record.validation.back());
    }
    if (checkpoint_is_due(options, step + 1, steps)) save(*state, step + 1);
  }
  record.digest = parameter_digest(*state->stream, state->table, state->master);

  report_loss(report, record, state->config, state->tokens);
  if (options.compare > 0) {
    const ReferenceRun reference = reference_run(options, state->tokens.train);
    report_deviation(report, record, reference, parameter_deviation(compared, reference.parameters), options);
  }
  report_memory(report, session, state->ledger, memory_formula(options));
  report_gpu_memory(report, state->ledger, options.device);
  report.block("traffic", {{"sent", "0", "one device talks to nobody", "bytes"}});
  report_time(report, record, state->time, options);
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
