// Lesson 08: tensor parallelism, sequence parallelism, vocabulary-parallel loss
//
// Builds on:    lesson 01 (a single device)
// New idea:     t ranks compute every layer of a model together: of a branch's two matrices each has some columns of the first
//               and the rows of the second that meet them, so that nothing is sent in between and one sum ends the branch. Of
//               the loss three numbers a token are sent instead of V logits. With --sequence-parallel the sum is cut into its
//               two halves, and in between each rank has T / t tokens of each sequence.
// Memory:       16 P / t bytes of model state a rank (positions, norms and biases behind a sum are whole on all), and of
//               activations s R (4 C + 12 C / t) bytes a layer; with --sequence-parallel s R (2 C + 14 C / t), with --regather
//               s R 16 C / t; and s R V / t of logits
// Traffic:      8 (t-1)/t B T C numbers a layer and micro-batch (four sums), 10 with --regather, however many parameters it
//               has; embedding and head together half as many as a layer; and (t-1) (1 + 4/t) numbers a token for the loss
// Paper:        Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022 (sequence parallelism), section 4.2
//
// Sample runs:  build/lessons/08_tensor_parallel --steps=3
//               mpirun -np 2 build/lessons/08_tensor_parallel --steps=5
//               mpirun -np 4 build/lessons/08_tensor_parallel --steps=5 --sequence-parallel
//               mpirun -np 4 build/lessons/08_tensor_parallel --steps=3 --tp=2 --dp=2 --arithmetic=exact --micro-batch=2
//               mpirun -np 4 build/lessons/08_tensor_parallel --steps=3 --sequence-parallel --regather --recompute=block
//               mpirun -np 3 build/lessons/08_tensor_parallel --steps=10 --heads=6 --channels=96 --compare=10
//               mpirun -np 2 build/lessons/08_tensor_parallel --steps=3 --precision=bf16 --sample=20
//               rm -f build/tp.h5; mpirun -np 4 build/lessons/08_tensor_parallel --steps=3 --checkpoint=build/tp.h5
//               mpirun -np 2 build/lessons/08_tensor_parallel --steps=5 --checkpoint=build/tp.h5 --resume
//               mpirun -np 4 build/lessons/08_tensor_parallel --model=gpt2-large --dry-run
//             * mpirun -np 4 build/lessons/08_tensor_parallel --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 01, whatever t is; less of every matrix and of every activation on each rank.
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
#include "common/in_turn.hpp"
#include "common/job_report.hpp"
#include "common/messages/mesh.hpp"
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
#include "gpt2/smaller_run.hpp"
#include "gpt2/training_options.hpp"
#include "lessons/04_zero1/shards.hpp"
#include "lessons/08_tensor_parallel/part_messages.hpp"
#include "lessons/08_tensor_parallel/row_gradients.hpp"
#include "lessons/08_tensor_parallel/split.hpp"
#include "lessons/08_tensor_parallel/split_plan.hpp"
#include "lessons/08_tensor_parallel/whole_tensors.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  OptionTable table{"08_tensor_parallel", "Tensor parallelism, sequence parallelism, vocabulary-parallel loss"};
  MessageOptions messages;
  SplitOptions split;

  Options()
  {
    declare(table, *this);
    declare(table, messages);
    declare(table, split);
  }

  /// The degrees of the ranks.
  Layout layout(const Session& session) const { return {.dp = split.dp, .tp = split.parts(session.ranks())}; }
  /// Which part of the model a rank has: neighbours divide a model.
  Part part(const Session& session) const
  {
    const int t = split.parts(session.ranks());
    return {session.rank() % t, t};
  }
  /// The sequences of the global batch that one replica computes.
  std::int64_t share() const { return global_batch / split.dp; }
  /// The shape of a micro-batch, of which a rank computes its part.
  ActivationShape shape(const Session& session) const
  {
    return divided(activation_shape(share()), split, part(session));
  }
  /// The axes of the ranks: those that divide a model are neighbours.
  std::vector<Axis> axes(const Session& session) const
  {
    return {{"dp", split.dp}, {"tp", split.parts(session.ranks())}};
  }
  /// Which ranks share a node.
  Topology topology() const { return topology_of_job(messages.ranks_per_node, device); }
  /// That of the ranks along an axis through this one.
  Topology topology(const Session& session, const std::string& axis) const
  {
    return topology().among(line_of(axes(session), session.rank(), axis));
  }
  /// What formulas count.
  SplitPlan plan(const Session& session) const
  {
    const Arithmetic sums(arithmetic);
    return {config(),
            shape(session),
            share() / shape(session).B,
            gradient_layout(ParameterTable(config(), part(session)), gradients),
            sums.keeps_tied_apart(),
            messages.algorithm(sums.default_collectives())};
  }
};

// ---- State -----------------------------------------------------------------------------------------------------------

/// What this rank holds.
struct State {
  State(const Options& o, const Session& s) : options(o), session(s) {}

  const Options& options;                             // what was asked for
  const Session& session;                             // rank r of N = t dp
  ModelConfig config = options.config();              // L, H, C, V
  Part part = options.part(session);                  // of every divided layer: this rank's
  BatchShape batch = options.batch(options.share());  // G, B, T
  ActivationShape shape = options.shape(session);     // of one micro-batch

  TimeLedger time;                                               // where the time goes
  MemoryLedger ledger{options.memory_limit.value};               // counts every buffer below
  std::unique_ptr<Device> device = make_device(options.device);  // where everything lies
  std::unique_ptr<Stream> stream = device->make_stream();        // the order in which it works
  DeviceMemory memory{device.get(), &ledger};                    // the device's memory, counted
  Arithmetic arithmetic{options.arithmetic, options.tf32};       // the order of sums
  Messages messages{options.messages, memory, *stream, time};    // who counts them and who watches
  Mesh mesh{session, options.axes(session),  // all N ranks, the t neighbours that divide a model, the dp replicas
            messages.setup(arithmetic.default_collectives())};
  Group &tp = mesh.group("tp"), &dp = mesh.group("dp"), &world = mesh.world();
  std::unique_ptr<Kernels> kernels = arithmetic.make_kernels(memory, *stream);  // what the pieces compute with

  Tokens tokens = open_corpus(options.data);                                     // the text
  Loader loader{tokens.train, options.loader_options()};                         // deals out its windows
  Range share = Partition(options.global_batch, dp.ranks()).segment(dp.rank());  // of the global batch
  Batch host_batch;                                   // windows on their way to the device
  Schedule schedule = options.schedule_over(loader);  // the learning rate of each step

  ParameterTable table{config, part};  // what stands where in the flat vectors
  Model model{{config, kernels.get(), part, options.dropout, options.seed}};  // the chain, this part of it
  Buffer parameters{memory, Category::parameters, shape.type, {table.elements()}, "parameters"};  // (P/t)
  ModelTensors weights = model_tensors(table, parameters.tensor());                               // views of them
  std::unique_ptr<GradientSum> gradients =                                                        // (P/t)
      arithmetic.make_gradient_sum(*kernels, *stream, dp.often_reduced(),
                                   gradient_layout(table, options.gradients));
  AdamW adamw{memory,     *stream,      table, {0, table.elements()},
              shape.type, options.adamw};  // (P/t) two or three times
  Tensor master =
      adamw.master(parameters.tensor());  // (P/t) f32: what is updated; in f32 the parameters themselves
  std::vector<Range> counted =
      answers_for(table, part);                   // of these, where each element of the model is counted once
  Workspace work{memory, config, shape};          // scratch of both passes
  Activations kept{memory, config, shape, work};  // from a forward pass to its backward pass

  PartMessages parts{tp, shape, config.channels, work, *kernels, time};      // sums over the parts, and rows
  RowGradients row_gradients{tp.memory(), *stream, table, shape, *kernels};  // of what all parts have
  Buffer room{
      memory, Category::communication, DType::f32, {whole_block_elements(table)}, "a block"};  // of any part
  Traffic sent, sent_to_replicas;                                                              // in one step
};

/// A state whose parameters have their initial values.
std::unique_ptr<State> make_state(const Options& options, const Session& session)
{
  omp_set_num_threads(options.threads);
  auto state = std::make_unique<State>(options, session);
  initialize_parameters(*state->stream, state->master, state->table, state->config, options.seed);
  state->adamw.round(*state->kernels, state->parameters.tensor());
  return state;
}

/// The same bytes by category, from the sizes alone.
CategoryBytes memory_formula(const Options& options, const Session& session)
{
  const ModelConfig config = options.config();
  const SplitPlan plan = options.plan(session);
  const Part part = options.part(session);
  const int t = part.count, dp = options.split.dp, ranks = session.ranks();
  CategoryBytes bytes = Arithmetic(options.arithmetic).gradient_bytes(plan.gradients, plan.passes);
  bytes[Category::parameters] = bytes_of(options.precision) * plan.gradients.elements;
  bytes[Category::optimizer] = adamw_bytes(plan.gradients.elements, options.precision);
  bytes[Category::activations] = activation_bytes(config, plan.shape);
  bytes[Category::workspace] = workspace_bytes(config, plan.shape) + kernel_bytes(options.device);
  bytes[Category::communication] =
      message_bytes(plan, options.topology(session, "tp"), options.topology(session, "dp"), options.topology(),
                    part.index, session.rank() / t, session.rank()) +
      host_values_bytes(options.device, t) + host_values_bytes(options.device, dp) +
      host_values_bytes(options.device, ranks);
  return bytes;
}

// ---- Forward and backward pass ---------------------------------------------------------------------------------------

/// Counts the arithmetic of this rank's part of a unit on the virtual clock, if there is one.
/// @param passes  1 for a forward pass, 2 for a backward pass.
void charge(State& state, std::int64_t unit, int passes)
{
  VirtualClock* clock = state.messages.clock();
  if (clock == nullptr) return;
  const double flops = unit_flops(state.config, unit, state.shape.rows(), state.batch.sequence) / state.part.count;
  clock->charge_compute(passes * std::llround(flops), passes == 1 ? "forward" : "backward");
}

/// Forward pass of branches [first, last).
void forward_branches(State& state, std::size_t first, std::size_t last, const MicroBatch& batch)
{
  const Activations& kept = state.kept;
  const Tensor& output = state.work.output;
  const MicroBatch rows = tokens_of(batch, state.shape.tokens);  // between the divided layers: this rank's
  for (std::size_t i = first; i < last; ++i) {
    const Branch& branch = state.model.branches[i];
    const BranchTensors& p = state.weights.branches[i];
    // BEGIN EXERCISE 08.1 points=10 "No communication in the middle: normalise, apply, add. Behind normalise() a divided layer "
    //     "wants the rows of all parts; apply() goes through both matrices and gives a partial sum, and what is added to the "
    //     "stream is the sum over the parts. parts.own() and parts.gathered() give the activations of a part's rows and of "
    //     "all rows; parts.sum() is the one message that a branch cannot do without."
    branch.normalise(state.parts.own(kept.branches[i]), p);
    branch.apply(output, state.parts.gathered(kept.branches[i]), p, batch);
    const Tensor sum = state.parts.sum(output);
    branch.add(kept.stream(i + 1), kept.branches[i], sum, p, rows);
    // END EXERCISE
    charge(state, branch.unit(), 1);
  }
}

/// The head's loss over a divided vocabulary: of each token its largest logit, the sum of exponentials and the target's logit
/// go over the parts, and none of the logits.
LossSum vocabulary_parallel_loss(State& state, const HeadActivations& a, const MicroBatch& batch)
{
  const Head& head = state.model.head;
  // BEGIN EXERCISE 08.4 points=10 "The loss: row_maximum(), row_sum() and loss() of the head, and between them what makes the "
  //     "numbers of this part (a.maximum; a.sum and a.target_logit) those of the whole vocabulary."
  head.row_maximum(a);
  state.parts.largest(a.maximum);
  head.row_sum(a, batch);
  state.parts.sum_numbers(a.sum);
  state.parts.sum_numbers(a.target_logit);
  return head.loss(a, batch);
  // END EXERCISE
}

/// The sum of losses of a micro-batch; what its backward pass needs is kept.
LossSum forward(State& state, const MicroBatch& batch)
{
  const Model& model = state.model;
  const ModelTensors& p = state.weights;
  const Activations& kept = state.kept;
  const Tensor& output = state.work.output;
  const MicroBatch rows = tokens_of(batch, state.shape.tokens);

  model.embedding.lookup(output, p.embedding, batch);
  model.embedding.add(kept.stream(0), state.parts.sum(output), p.embedding, rows);
  forward_branches(state, 0, model.branches.size(), batch);
  model.head.normalise(state.parts.own(kept.head), p.head);
  const HeadActivations head = state.parts.gathered(kept.head);
  model.head.logits(head, p.head);
  charge(state, unit_count(state.config) - 1, 1);
  return vocabulary_parallel_loss(state, head, batch);
}

/// Adds the gradient of that sum to @p d.
void backward(State& state, const ModelTensors& d, const MicroBatch& batch)
{
  const Model& model = state.model;
  const ModelTensors& p = state.weights;
  const Activations& kept = state.kept;
  const Tensor &dx = state.work.dstream, &output = state.work.output, &wide = state.work.wide;
  const MicroBatch rows = tokens_of(batch, state.shape.tokens);
  const RowGradients& over_rows = state.row_gradients;

  model.head.apply_backward(output, d.head, state.parts.regathered(kept.head), p.head, batch);
  const Tensor dhead = state.parts.sum(output);
  state.stream->zero(dx);
  over_rows.normalise_backward(model.head, dx, d.head, dhead, kept.head, p.head, rows);
  charge(state, unit_count(state.config) - 1, 2);

  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, i - 1, i + 1, batch);

    const Branch& branch = model.branches[i];
    const BranchActivations& a = kept.branches[i];
    const Tensor own = over_rows.add_backward(branch, d.branches[i], dx, output, rows);
    const Tensor doutput = state.parts.gather(own, output);
    branch.apply_backward(output, d.branches[i], doutput, wide, state.parts.regathered(a), p.branches[i], batch);
    const Tensor dnormalised = state.parts.sum(output);
    over_rows.normalise_backward(branch, dx, d.branches[i], dnormalised, a, p.branches[i], rows);
    charge(state, branch.unit(), 2);
  }
  model.embedding.backward(d.embedding, state.parts.gather(dx, output), batch);
}

// ---- Training --------------------------------------------------------------------------------------------------------

/// What this rank has sent in the group of an axis, and in that group's levels.
Traffic sent_along(State& state, const std::string& axis)
{
  Traffic sent;
  for (const char* level : {"", " inside", " between"}) sent += state.messages.traffic().of(axis + level);
  return sent;
}

/// One optimizer step over the global batch; this replica's share of it in passes of B.
StepReport train_step(State& state, std::int64_t step)
{
  const Stopwatch clock;
  const auto span = state.time.span(Work::compute, "training step");
  LossSum loss;
  state.gradients->clear();
  const Traffic before = sent_along(state, "tp"), before_replicas = sent_along(state, "dp");
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
    state.row_gradients.add_to(d.flat, state.tp);
    state.gradients->end(sequences);
  }
  state.sent = sent_along(state, "tp") - before;

  for (const Tensor& sums : state.gradients->sums()) all_reduce_sum(sums, state.dp);
  state.sent_to_replicas = sent_along(state, "dp") - before_replicas;
  all_reduce_sum(loss, state.dp);

  const Tensor gradient = state.gradients->total();
  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  std::vector<Tensor> own;
  for (const Range& elements : state.counted) own.push_back(gradient.slice(elements));
  const double norm = std::sqrt(squared_norm(*state.kernels, own, state.tp)) / valid_tokens;
  const double learning_rate = state.schedule.at(step);
  check_finite(step, loss.mean(), norm, *state.kernels,
               {{state.table, {0, state.table.elements()}, state.master, {}, {}}}, {gradient}, state.world);
  state.adamw.step(*state.kernels, state.parameters.tensor(), gradient, learning_rate,
                   clip_factor(norm, state.options.clip) / valid_tokens);
  state.stream->synchronise();
  state.messages.end_step();
  return {loss.mean(), norm, learning_rate, clock.seconds()};
}

/// The mean loss over the whole validation split; each replica takes every dp-th pass.
double evaluate(State& state)
{
  const auto span = state.time.span(Work::compute, "validation");
  const Loader validation(state.tokens.validation, state.options.loader_options());
  LossSum loss;
  const std::int64_t B = state.batch.micro_batch;
  for (std::int64_t first = state.dp.rank() * B; first < validation.windows(); first += state.dp.ranks() * B) {
    const Range windows = intersect({first, B}, {0, validation.windows()});
    validation.load_in_order(windows, state.host_batch);
    pad(state.host_batch, B);
    MicroBatch batch = place(state.kept, *state.stream, state.host_batch, {0, B}, 0);
    batch.training = false;
    loss += forward(state, batch);
  }
  all_reduce_sum(loss, state.dp);
  return loss.mean();
}

/// Generates text, one token after the other, from the last T of those before it; the same on all ranks.
std::string sample(State& state)
{
  const auto span = state.time.span(Work::compute, "sampling");
  const std::shared_ptr<const Tokenizer> tokenizer = state.tokens.tokenizer;
  GeneratingPass pass(state.memory, *state.stream, state.model, state.shape.type, state.batch.sequence);
  const std::int64_t stored = state.config.stored_vocabulary(state.part.count);
  const Buffer logits(state.memory, Category::workspace, state.shape.type, {state.part.count * stored},
                      "all logits");
  const std::vector<Token> prompt = tokenizer->encode("\n");
  std::vector<Token> text = prompt;
  for (std::int64_t number = 0; number < state.options.sample; ++number) {
    pass.begin(text);
    all_reduce_sum(pass.lookup(state.weights.embedding), state.tp);
    pass.add(state.weights.embedding);
    for (std::size_t i = 0; i < state.model.branches.size(); ++i) {
      all_reduce_sum(pass.apply(i, state.weights.branches[i]), state.tp);
      pass.add(i, state.weights.branches[i]);
    }
    state.stream->copy(logits.tensor().slice({state.part.index * stored, stored}), pass.logits(state.weights.head));
    all_gather(logits.tensor(), state.tp);
    const std::vector<float> all = read_logits(*state.stream, logits.tensor(), state.config);
    text.push_back(pick_token(all, state.options.sampling, number));
  }
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return tokenizer->decode(text);
}

// ---- Checkpoints -----------------------------------------------------------------------------------------------------

/// Some of what this rank holds of the model.
Shard shard(State& state, Range elements)
{
  return {state.table, elements, state.master.slice(elements), state.adamw.first_moments().slice(elements),
          state.adamw.second_moments().slice(elements)};
}

/// Saves the state after @p step steps; each rank of the first replica what it answers for, one after the other. The
/// checkpoint before it stays until this one is complete.
void save(State& state, std::int64_t step)
{
  const auto span = state.time.span(Work::io, "saving a checkpoint");
  const std::string& path = state.options.checkpoint;
  if (state.session.rank() == 0)
    create_checkpoint(path, {.config = state.config,
                             .step = step,
                             .updates = state.adamw.updates(),
                             .options = run_options(state.options, state.tokens)});
  in_turn(state.session, [&] {
    if (state.dp.rank() != 0) return;
    for (const Range& elements : state.counted) write_checkpoint(path, *state.stream, shard(state, elements));
  });
  if (state.session.rank() == 0) commit_checkpoint(path);
}

/// Goes on from what --resume or --initial names, if one of them is given; this rank reads its part.
/// @return  the steps that were made before.
std::int64_t resume(State& state)
{
  const Options& o = state.options;
  const auto span = state.time.span(Work::io, "reading a checkpoint");
  Shard all = shard(state, {0, state.table.elements()});
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

/// What would make a run fit that has no room, as a sentence.
std::string what_fits(const Options& options, const Session& session, std::int64_t room)
{
  Options smaller;
  static_cast<TrainingOptions&>(smaller) = options;
  smaller.messages = options.messages;
  smaller.split = options.split;
  SmallerRun run([&] { return memory_formula(smaller, session).total(); }, room);
  const bool divides =
      options.part(session).count > 1 && options.batch(1).sequence % options.part(session).count == 0;
  if ((divides && run.fits_with("--sequence-parallel", smaller.split.sequence_parallel, true)) ||
      (divides && run.fits_with("--regather", smaller.split.regather, true)) ||
      run.fits_with("--recompute=block", smaller.recompute_blocks, true) ||
      (options.gradients == DType::f32 && run.fits_with("--micro-batch=1", smaller.micro_batch, std::int64_t{1})))
    return run.enough();
  return run.least(fmt::format("with {} tensor-parallel ranks", options.part(session).count),
                   "Divide the model among more ranks, or use a smaller one.");
}

/// Refuses what cannot be done, before anything is done.
void check(const Options& options, const Session& session)
{
  const ModelConfig config = options.config();
  check_split(options.split, config, options.batch(1).sequence, session.ranks());
  check_share(options.global_batch, options.split.dp);
  check_options(options, options.layout(session));
  const Arithmetic arithmetic(options.arithmetic);
  const Algorithm fallback = arithmetic.default_collectives();
  check_options(options.messages, fallback, options.device);
  arithmetic.check_collectives(options.messages.algorithm(fallback));
  check_algorithm(options.messages.algorithm(fallback), options.topology(), options.axes(session));
  const CategoryBytes planned = memory_formula(options, session);
  const std::int64_t limit = options.memory_limit.value;
  check_memory_limit(planned, limit, what_fits(options, session, limit));
  if (options.dry_run) return;
  check_device(options.device);
  check_own_gpus(options.messages.transport, options.device);
  check_room(planned, options.device, what_fits(options, session, room_on(options.device)));
  const Tokens tokens = open_corpus(options.data);
  check_vocabulary(tokens, config.vocabulary);
  check_enough_tokens(tokens, options.batch(options.share()).sequence, options.global_batch);
  check_fits_data(options, tokens);
  check_checkpoints(options, tokens);
}

/// Trains, validates, and tells.
int run(const Options& options, const Session& session)
{
  Report report(session.rank() == 0, options.report);
  begin_job(report, "08_tensor_parallel", session.ranks());
  const Layout layout = options.layout(session);
  const SplitPlan plan = options.plan(session);
  const std::string formula = describe_part_traffic(plan.shape);
  if (options.dry_run) {
    begin_report(report, layout, options.table, options, {});
    report_plan(report, largest_on_any_rank(session, memory_formula(options, session)), options);
    const Part part = options.part(session);
    const Traffic planned = part_traffic(plan, options.topology(session, "tp"), part.index);
    report.block("traffic", {{"a step", format_bytes(planned.bytes), "", "bytes sent by rank 0; " + formula}});
    report.comment(describe_split(options.config(), part));
    return report.finish();
  }
  check_alike(options.table, open_corpus(options.data));
  const std::unique_ptr<State> state = make_state(options, session);
  const std::unique_ptr<Watchdog> watchdog = state->messages.make_watchdog();
  begin_report(report, layout, options.table, options, state->tokens);
  report_placement(report, session, options.device);
  if (!state->messages.carrier().empty()) report.comment(state->messages.carrier());
  report.comment(fmt::format("collectives by {}; --tp={}: {} of the model on each rank",
                             describe_algorithm(state->tp), state->part.count,
                             state->part.count == 1 ? "all" : fmt::format("1/{}", state->part.count)));
  begin_steps(report);
  if (!options.trace.empty()) {
    state->time.record();
    state->ledger.record();
  }

  RunRecord record;
  record.first_step = resume(*state);
  record.from_scratch = !options.resume && options.initial.empty();
  state->messages.begin_steps();
  std::vector<float> compared;  // this rank's parameters after --compare steps
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
  record.digest =
      parameter_digest(divided_model(state->config, state->table, state->master, state->tp), state->room.tensor());

  report_loss(report, record, state->config, state->tokens);
  report.check("digest on every rank", "the same", record.digest.substr(0, 12),
               same_on_all_ranks(record.digest, state->world));
  const std::string common = common_digest(state->table, state->master, *state->stream);
  report.check("what all parts have", "the same", common.substr(0, 12), same_on_all_ranks(common, state->world));
  if (options.compare > 0) {
    const ReferenceRun reference = reference_run_on_rank_0(session, options, state->tokens.train);
    const ParameterDeviation deviation =
        parameter_deviation(divided_model(state->config, state->table,
                                          Tensor(std::span(compared), {state->table.elements()}), state->tp),
                            reference.parameters, state->room.tensor());
    if (session.rank() == 0) report_deviation(report, record, reference, deviation, options);
  }
  report_memory(report, session, state->ledger, memory_formula(options, session));
  report_gpu_memory(report, state->ledger, options.device);
  report_traffic(report, "tp", "a step", state->sent, part_traffic(plan, state->tp.topology(), state->tp.rank()),
                 formula);
  if (options.split.dp > 1)
    report_traffic(report, "dp", "a step, to replicas", state->sent_to_replicas,
                   replica_traffic(plan, state->dp.topology(), state->dp.rank()),
                   "2 (dp-1)/dp of a part's gradients");
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
