// Lesson 09: pipeline parallelism, with the schedule as data
//
// Builds on:    lesson 01 (a single device)
// New idea:     the model is cut into stages, runs of blocks, and each rank has some of them. Micro-batches go through the stages
//               forwards and backwards, and what is sent is what lies between two stages: the residual stream and its gradient.
//               Who works on what and when is data: a list of actions for each rank, made by a generator, checked on paper, and
//               carried out by one loop (pipeline.hpp), whichever schedule it is.
// Memory:       16 P / p bytes of model state a rank (and 16 V C once more: the last stage has a copy of the token embedding);
//               activations of a stage for each micro-batch in flight: m of them with gpipe, min(p - rank, m) with 1f1b
// Traffic:      m B T C numbers a boundary and direction, and 2 V C once a step for the tied embedding
// Paper:        Huang et al. 2019 (GPipe); Narayanan et al. 2021 (Megatron-LM), section 2.2; Qi et al. 2024 (zero bubble)
//
// Sample runs:  build/lessons/09_pipeline_parallel --steps=3
//               mpirun -np 2 build/lessons/09_pipeline_parallel --steps=5
//               mpirun -np 4 build/lessons/09_pipeline_parallel --steps=3 --micro-batch=2 --schedule=gpipe
//               mpirun -np 4 build/lessons/09_pipeline_parallel --steps=3 --micro-batch=2 --schedule=zero-bubble
//               mpirun -np 2 build/lessons/09_pipeline_parallel --steps=3 --schedule=interleaved --link=5us,10GB/s
//               mpirun -np 4 build/lessons/09_pipeline_parallel --steps=3 --arithmetic=exact --recompute=block
//               mpirun -np 3 build/lessons/09_pipeline_parallel --steps=10 --partition=1,2,1 --compare=10
//               mpirun -np 2 build/lessons/09_pipeline_parallel --steps=3 --precision=bf16 --sample=20
//               rm -f build/pp.h5; mpirun -np 4 build/lessons/09_pipeline_parallel --steps=3 --checkpoint=build/pp.h5
//               mpirun -np 2 build/lessons/09_pipeline_parallel --steps=5 --checkpoint=build/pp.h5 --resume
//               mpirun -np 4 build/lessons/09_pipeline_parallel --model=gpt2-large --dry-run
//             * mpirun -np 4 build/lessons/09_pipeline_parallel --device=cuda --steps=20    (* needs a GPU; four of them for NCCL)
// Expect:       the loss column of lesson 01, whatever p is; the idle share of the schedule beside its formula.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <algorithm>
#include <cmath>
#include <memory>
#include <omp.h>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/collectives/collectives.hpp"
#include "common/cuda/devices.hpp"
#include "common/device.hpp"
#include "common/job_report.hpp"
#include "common/messages/link_options.hpp"
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
#include "gpt2/checkpoint.hpp"
#include "gpt2/generate.hpp"
#include "gpt2/model.hpp"
#include "gpt2/reference_run.hpp"
#include "gpt2/run_report.hpp"
#include "gpt2/smaller_run.hpp"
#include "gpt2/training_options.hpp"
#include "lessons/04_zero1/sharded_adamw.hpp"
#include "lessons/04_zero1/shards.hpp"
#include "lessons/09_pipeline_parallel/pipeline.hpp"
#include "lessons/09_pipeline_parallel/pipeline_options.hpp"
#include "lessons/09_pipeline_parallel/pipeline_plan.hpp"
#include "lessons/09_pipeline_parallel/schedule_check.hpp"
#include "lessons/09_pipeline_parallel/schedule_report.hpp"
#include "lessons/09_pipeline_parallel/stage.hpp"
#include "lessons/09_pipeline_parallel/stages.hpp"
#include "lessons/09_pipeline_parallel/stash.hpp"
#include "lessons/09_pipeline_parallel/text_pipeline.hpp"
#include "lessons/09_pipeline_parallel/tied_embedding.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  OptionTable table{"09_pipeline_parallel", "Pipeline parallelism, with the schedule as data"};
  MessageOptions messages;
  PipelineOptions pipeline;

  Options()
  {
    declare(table, *this);
    declare(table, messages);
    declare(table, pipeline);
  }

  /// G, B and T among so many ranks.
  BatchShape batch(int ranks) const
  {
    return TrainingOptions::batch(default_micro_batch(pipeline, global_batch, ranks));
  }
  /// Who has which stages, and what is done when.
  PipelinePlan plan(int ranks) const
  {
    ActivationShape shape = activation_shape(batch(ranks).micro_batch);
    shape.gradients = gradients;
    return {config(), shape, pipeline, ranks, global_batch / shape.B};
  }
  /// Which ranks share a node.
  Topology topology() const { return topology_of_job(messages.ranks_per_node, device); }
  /// That of the first and the last of so many ranks.
  Topology ends(int ranks) const { return topology().among({0, ranks - 1}); }
  /// By which all sums over ranks are made.
  Algorithm algorithm() const { return messages.algorithm(Arithmetic(arithmetic).default_collectives()); }
};

// ---- State -----------------------------------------------------------------------------------------------------------

/// One of this rank's stages, with what it computes with.
struct OwnStage {
  PipelineStage stage;                     // which
  Model model;                             // its run of the chain
  ModelTensors weights;                    // its parameters, as views
  std::unique_ptr<GradientSum> gradients;  // of all of them
  Stash stash;                             // what its micro-batches in flight keep
};

/// What this rank holds.
struct State {
  State(const Options& o, const Session& s) : options(o), session(s) {}

  const Options& options;                             // what was asked for
  const Session& session;                             // rank r of p
  ModelConfig config = options.config();              // L, H, C, V
  BatchShape batch = options.batch(session.ranks());  // G, B, T
  PipelinePlan plan = options.plan(session.ranks());  // who has which stages, and does what when
  ActivationShape shape = plan.shape;                 // of one micro-batch

  TimeLedger time;                                               // where the time goes
  MemoryLedger ledger{options.memory_limit.value};               // counts every buffer below
  std::unique_ptr<Device> device = make_device(options.device);  // where everything lies
  std::unique_ptr<Stream> stream = device->make_stream();        // the order in which it works
  DeviceMemory memory{device.get(), &ledger};                    // the device's memory, counted
  Arithmetic arithmetic{options.arithmetic, options.tf32};       // the order of sums
  Messages messages{options.messages, memory, *stream, time};    // who counts them and who watches
  GroupSetup setup = messages.setup(arithmetic.default_collectives());
  Group pp{"pp", Communicator::world(), setup};                                 // all p ranks, by stage
  std::unique_ptr<Group> ends = group_of_ends(pp, setup);                       // who has the token embedding
  std::unique_ptr<Kernels> kernels = arithmetic.make_kernels(memory, *stream);  // what the pieces compute with

  Tokens tokens = open_corpus(options.data);              // the text
  Loader loader{tokens.train, options.loader_options()};  // deals out its windows
  Batch host_batch;                                       // windows on their way to the device
  Schedule schedule = options.schedule_over(loader);      // the learning rate of each step

  std::vector<Range> own = ranges_of(plan.table, plan.stages_of(pp.rank()));  // of the table: what this rank has
  Buffer parameters{memory, Category::parameters, shape.type, {elements_of(own)}, "parameters"};  // (P/p)
  ShardedAdamW adamw{memory,       *stream, plan.table, own, cut(parameters.tensor(), own),
                     options.adamw};                // (P/p) states
  std::vector<Segment> segments = plan.segments();  // of the table: who owns what; a copy has no owner
  Buffer room{memory, Category::communication, DType::f32, {block_elements(segments)}, "a block"};  // of any owner

  Pipeline pipeline{pp,  plan.schedule.virtual_stages, setup, shape.type, plan.rows(),
                    time};                 // what joins the stages
  Workspace work{memory, config, shape};   // scratch of all passes
  std::vector<OwnStage> stages;            // of this rank
  std::vector<PerformedAction> performed;  // in the last step
  Traffic sent, sent_tied;                 // in one step

  /// The stage of an action.
  OwnStage& stage_of(const Action& action)
  {
    return stages[static_cast<std::size_t>(action.stage / plan.schedule.ranks)];
  }
};

/// A state whose parameters have their initial values.
std::unique_ptr<State> make_state(const Options& options, const Session& session)
{
  omp_set_num_threads(options.threads);
  auto state = std::make_unique<State>(options, session);
  for (const Shard& mine : state->adamw.shards())
    initialize_parameters(*state->stream, mine.parameters, mine.table, state->config, options.seed,
                          mine.owned.first);
  state->adamw.round(*state->kernels);

  const PipelinePlan& plan = state->plan;
  std::int64_t first = 0;  // of the stage's parameters
  for (const PipelineStage& stage : plan.stages_of(session.rank())) {
    const Tensor flat = state->parameters.tensor().slice({first, stage.size()});
    state->stages.push_back(
        {stage, Model({state->config, state->kernels.get(), {}, options.dropout, options.seed}, stage.units),
         stage_tensors(plan.table, stage, flat),
         state->arithmetic.make_gradient_sum(*state->kernels, *state->stream, state->memory,
                                             gradient_layout(plan.table, stage, options.gradients)),
         Stash(state->memory, state->config, plan.shape_of(stage), state->work, plan.in_flight(stage))});
    first += stage.size();
  }
  return state;
}

/// The same bytes by category, from the sizes alone, of one of p ranks.
CategoryBytes memory_formula(const Options& options, int p, int rank)
{
  const ModelConfig config = options.config();
  const PipelinePlan plan = options.plan(p);
  const std::vector<PipelineStage> stages = plan.stages_of(rank);
  const std::int64_t elements = elements_of(ranges_of(plan.table, stages));
  CategoryBytes bytes;
  for (const PipelineStage& stage : stages)
    bytes +=
        Arithmetic(options.arithmetic)
            .gradient_bytes(gradient_layout(plan.table, stage, options.gradients), plan.schedule.micro_batches);
  bytes[Category::parameters] = bytes_of(options.precision) * elements;
  bytes[Category::optimizer] = adamw_bytes(elements, options.precision);
  bytes[Category::activations] = plan.activation_bytes(rank);
  bytes[Category::workspace] = workspace_bytes(config, plan.shape) + kernel_bytes(options.device);
  bytes[Category::communication] =
      message_bytes(plan, options.algorithm(), options.gradients, options.topology(), options.ends(p), rank) +
      host_values_bytes(options.device, p) +
      (p > 1 && (rank == 0 || rank == p - 1) ? host_values_bytes(options.device, 2) : 0);  // group_of_ends()
  return bytes;
}

/// Those of the rank that needs most.
CategoryBytes largest_formula(const Options& options, int p)
{
  CategoryBytes largest;
  for (int rank = 0; rank < p; ++rank)
    if (const CategoryBytes bytes = memory_formula(options, p, rank); bytes.total() > largest.total())
      largest = bytes;
  return largest;
}

// ---- Forward and backward pass ---------------------------------------------------------------------------------------

/// Forward pass of branches [first, last) of a stage. The rows behind its last branch go to @p room, or to nobody where the
/// stage that wants them has them already.
void forward_branches(State& state, const OwnStage& own, std::size_t first, std::size_t last, const InFlight& m,
                      const Tensor& room = {})
{
  const Tensor& output = state.work.output;
  for (std::size_t i = first; i < last; ++i) {
    const Branch& branch = own.model.branches[i];
    const BranchTensors& p = own.weights.branches[i];
    const bool sent_on = i + 1 == own.model.branches.size() && !own.stage.last;
    const Tensor& next = sent_on ? room : m.kept.stream(i + 1);
    branch.normalise(m.kept.branches[i], p);
    branch.apply(output, m.kept.branches[i], p, m.batch);
    if (!next.empty()) branch.add(next, m.kept.branches[i], output, p, m.batch);
  }
}

/// Forward pass of a stage.
/// @param rows  (R, C) in front of it.
/// @param room  (R, C) for those behind it.
/// @return  the sum of losses, in the last stage.
LossSum forward(State& state, const OwnStage& own, const InFlight& m, const Tensor& rows, const Tensor& room)
{
  const Model& model = own.model;
  const Tensor& output = state.work.output;
  if (own.stage.first) {
    model.embedding.lookup(output, own.weights.embedding, m.batch);
    model.embedding.add(m.kept.stream(0), output, own.weights.embedding, m.batch);
  } else {
    state.stream->copy(m.kept.stream(0), rows);
  }
  forward_branches(state, own, 0, model.branches.size(), m, room);
  return own.stage.last ? model.head.forward(m.kept.head, own.weights.head, m.batch) : LossSum{};
}

/// Adds the gradient of the sum of losses with respect to the stage's parameters to @p d.
/// @param rows  (R, C) the gradient of those behind it.
/// @param room  (R, C) for the gradient of those in front of it.
void backward(State& state, const OwnStage& own, const ModelTensors& d, const InFlight& m, const Tensor& rows,
              const Tensor& room)
{
  const Model& model = own.model;
  const ModelTensors& p = own.weights;
  const Activations& kept = m.kept;
  const Tensor &dx = state.work.dstream, &output = state.work.output;

  if (own.stage.last) {
    model.head.apply_backward(output, d.head, kept.head, p.head, m.batch);
    state.stream->zero(dx);
    model.head.normalise_backward(dx, d.head, output, kept.head, p.head, m.batch);
  } else {
    state.stream->copy(dx, rows);
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, own, i - 1, i + 1, m);

    const Branch& branch = model.branches[i];
    const BranchActivations& a = kept.branches[i];
    const Tensor doutput = branch.add_backward(d.branches[i], dx, output, m.batch);
    branch.apply_backward(output, d.branches[i], doutput, state.work.wide, a, p.branches[i], m.batch);
    branch.normalise_backward(dx, d.branches[i], output, a, p.branches[i], m.batch);
  }
  if (own.stage.first)
    model.embedding.backward(d.embedding, dx, m.batch);
  else
    state.stream->copy(room, dx);
}

/// The first half of that, which the stage before waits for: the gradient of the rows in front of the stage. What the second
/// half needs is put off.
void backward_input(State& state, const OwnStage& own, const InFlight& m, const Tensor& rows, const Tensor& room)
{
  const Model& model = own.model;
  const ModelTensors& p = own.weights;
  const Activations& kept = m.kept;
  const PutOff& later = kept.put_off;
  const Tensor &dx = state.work.dstream, &output = state.work.output;
  const Tensor dhidden = state.work.wide.slice({0, output.elements()});
  Stream& stream = *state.stream;

  if (own.stage.last) {
    model.head.logits_backward(output, kept.head, p.head, m.batch);
    for (const Tensor& zero : {dx, later.norm_weight, later.norm_bias}) stream.zero(zero);
    model.head.normalise_backward(dx, {later.norm_weight, later.norm_bias, {}}, output, kept.head, p.head, m.batch);
  } else {
    stream.copy(dx, rows);
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, own, i - 1, i + 1, m);

    const Branch& branch = model.branches[i];
    const BranchActivations& a = kept.branches[i];
    const PutOffBranch& l = later.branches[i];
    const Tensor doutput = branch.output_backward(dx, l.doutput, m.batch);
    if (doutput.raw() != l.doutput.raw()) stream.copy(l.doutput, doutput);
    branch.inner_backward(l.dinner, dhidden, l.doutput, a, p.branches[i], m.batch);
    branch.normalised_backward(output, l.dinner, p.branches[i], m.batch);
    for (const Tensor& zero : {l.norm_weight, l.norm_bias}) stream.zero(zero);
    branch.normalise_backward(dx, {l.norm_weight, l.norm_bias, {}, {}, {}, {}}, output, a, p.branches[i], m.batch);
  }
  stream.copy(own.stage.first ? later.stream : room, dx);
}

/// The second half, which nobody waits for: the gradients of the stage's parameters, added to @p d.
void backward_weights(State& state, const OwnStage& own, const ModelTensors& d, const InFlight& m)
{
  const Model& model = own.model;
  const Activations& kept = m.kept;
  const PutOff& later = kept.put_off;
  const Kernels& kernels = *state.kernels;

  if (own.stage.last) {
    model.head.weights_backward(d.head, kept.head, m.batch);
    kernels.add(d.head.norm_weight, later.norm_weight);
    kernels.add(d.head.norm_bias, later.norm_bias);
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, own, i - 1, i + 1, m);

    const Branch& branch = model.branches[i];
    const PutOffBranch& l = later.branches[i];
    branch.out_bias_backward(d.branches[i], l.doutput, m.batch);
    branch.weights_backward(d.branches[i], l.doutput, l.dinner, kept.branches[i], m.batch);
    kernels.add(d.branches[i].norm_weight, l.norm_weight);
    kernels.add(d.branches[i].norm_bias, l.norm_bias);
  }
  if (own.stage.first) model.embedding.backward(d.embedding, later.stream, m.batch);
}

// ---- Training --------------------------------------------------------------------------------------------------------

/// The sequences of the global batch that a micro-batch is.
Range sequences_of(const State& state, const Action& action)
{
  return {action.micro_batch * state.batch.micro_batch, state.batch.micro_batch};
}

/// The micro-batch of a forward pass. Only the first stage looks tokens up, and only the last one compares with them; the
/// others keep none.
MicroBatch load(State& state, const Activations& kept, Range sequences, std::int64_t step)
{
  const auto reading = state.time.span(Work::io, "reading tokens");
  state.loader.load(step, sequences, state.host_batch);
  return place(kept, *state.stream, state.host_batch, sequences, step);
}

/// Carries out one action of a training step.
void perform(State& state, const Action& action, std::int64_t step, const Tensor& rows, const Tensor& room,
             LossSum& loss)
{
  OwnStage& own = state.stage_of(action);
  InFlight& m = own.stash.before(action);
  if (action.kind == ActionKind::forward) {
    m.batch = load(state, m.kept, sequences_of(state, action), step);
    loss += forward(state, own, m, rows, room);
  } else if (action.kind == ActionKind::backward_input) {
    backward_input(state, own, m, rows, room);
  } else {
    const GradientTensors d = own.gradients->begin(m.batch.rows.sequences);
    const ModelTensors tensors = stage_tensors(state.plan.table, own.stage, d.flat, d.tied);
    if (action.kind == ActionKind::backward)
      backward(state, own, tensors, m, rows, room);
    else
      backward_weights(state, own, tensors, m);
    own.gradients->end(m.batch.rows.sequences);
  }
  own.stash.after(action, true);
  if (VirtualClock* clock = state.messages.clock())
    clock->charge_compute(state.plan.costs[static_cast<std::size_t>(action.stage)].of(action.kind),
                          name_of(action.kind));
}

/// The gradients of what this rank has, range by range. The token embedding's is the sum of what both ends have.
std::vector<Tensor> whole_gradients(State& state)
{
  std::vector<Tensor> gradients;
  for (OwnStage& own : state.stages) {
    const Tensor total = own.gradients->total();
    const Range token = own.stage.token(state.plan.table);
    if (state.ends && !token.empty()) {
      const auto span = state.time.span(Work::exposed, "summing the tied embedding's gradient");
      all_reduce_sum(total.slice(token), *state.ends);
    }
    for (const Tensor& gradient : cut(total, ranges_of(state.plan.table, own.stage))) gradients.push_back(gradient);
  }
  return gradients;
}

/// Of what belongs to the ranges of this rank: that of those that are not copies.
template <class T>
std::vector<T> without_copies(const State& state, const std::vector<T>& of_ranges)
{
  std::vector<T> counted;
  for (std::size_t i = 0; i < state.own.size(); ++i)
    if (!is_copy(state.stages.back().stage, state.own[i])) counted.push_back(of_ranges[i]);
  return counted;
}

/// What this rank has sent to its neighbours.
Traffic sent_along(State& state)
{
  Traffic sent = state.messages.traffic().of(rows_group);
  return sent += state.messages.traffic().of(gradients_group);
}

/// What this rank has sent for the tied embedding.
Traffic sent_tied(State& state)
{
  Traffic sent;
  for (const char* level : {"tied", "tied inside", "tied between"}) sent += state.messages.traffic().of(level);
  return sent;
}

/// One optimizer step over the global batch, in m micro-batches of B.
StepReport train_step(State& state, std::int64_t step)
{
  const Stopwatch clock;
  const auto span = state.time.span(Work::compute, "training step");
  LossSum loss;
  for (OwnStage& own : state.stages) own.gradients->clear();
  const Traffic before = sent_along(state), before_tied = sent_tied(state);
  state.performed =
      state.pipeline.run(state.plan.schedule, [&](const Action& action, const Tensor& rows, const Tensor& room) {
        perform(state, action, step, rows, room, loss);
      });
  state.sent = sent_along(state) - before;

  const std::vector<Tensor> gradients = whole_gradients(state);
  state.sent_tied = sent_tied(state) - before_tied;
  all_reduce_sum(loss, state.pp);

  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  const double norm =
      std::sqrt(squared_norm(*state.kernels, without_copies(state, gradients), state.pp)) / valid_tokens;
  const double learning_rate = state.schedule.at(step);
  check_finite(step, loss.mean(), norm, *state.kernels, state.adamw.shards(), gradients, state.pp);
  state.adamw.step(*state.kernels, gradients, learning_rate, clip_factor(norm, state.options.clip) / valid_tokens);
  state.stream->synchronise();
  state.messages.end_step();
  return {loss.mean(), norm, learning_rate, clock.seconds()};
}

/// The mean loss over the whole validation split, whose micro-batches follow each other through the stages.
double evaluate(State& state)
{
  const auto span = state.time.span(Work::compute, "validation");
  const Loader validation(state.tokens.validation, state.options.loader_options());
  const std::int64_t B = state.batch.micro_batch, passes = (validation.windows() + B - 1) / B;
  LossSum loss;
  const auto perform_forward = [&](const Action& action, const Tensor& rows, const Tensor& room) {
    OwnStage& own = state.stage_of(action);
    InFlight& m = own.stash.before(action);
    validation.load_in_order(intersect({action.micro_batch * B, B}, {0, validation.windows()}), state.host_batch);
    pad(state.host_batch, B);
    m.batch = place(m.kept, *state.stream, state.host_batch, {0, B}, 0);
    m.batch.training = false;
    loss += forward(state, own, m, rows, room);
    own.stash.after(action, false);
  };
  state.pipeline.run(forward_only(state.pp.ranks(), state.plan.schedule.virtual_stages, static_cast<int>(passes)),
                     perform_forward);
  all_reduce_sum(loss, state.pp);
  return loss.mean();
}

/// The token that follows @p text, the same on all ranks. It is not known before all stages have been passed through, one
/// after the other: each tells all ranks what it has made.
/// @param passes  of this rank's stages.
Token next_token(State& state, std::vector<GeneratingPass>& passes, const std::vector<Token>& text,
                 std::int64_t number)
{
  std::int64_t token = 0;  // on the rank that has the head; the others add nothing
  for (GeneratingPass& pass : passes) pass.begin(text);
  pass_through(state.plan.stages, state.pp, passes, [&](const PipelineStage& stage, std::size_t place) {
    GeneratingPass& pass = passes[place];
    const ModelTensors& weights = state.stages[place].weights;
    if (stage.first) pass.embedding(weights.embedding);
    for (std::size_t i = 0; i < weights.branches.size(); ++i) pass.branch(i, weights.branches[i]);
    if (stage.last) token = pick_token(pass.head(weights.head), state.options.sampling, number);
  });
  for (GeneratingPass& pass : passes) pass.end();
  all_reduce_sum(token, state.pp);
  return static_cast<Token>(token);
}

/// Generates text, one token after the other, from the last T of those before it; the same on all ranks.
std::string sample(State& state)
{
  const auto span = state.time.span(Work::compute, "sampling");
  const std::shared_ptr<const Tokenizer> tokenizer = state.tokens.tokenizer;
  std::vector<GeneratingPass> passes;
  for (const OwnStage& own : state.stages)
    passes.emplace_back(state.memory, *state.stream, own.model, state.shape.type, state.batch.sequence);
  const std::vector<Token> prompt = tokenizer->encode("\n");
  std::vector<Token> text = prompt;
  for (std::int64_t number = 0; number < state.options.sample; ++number)
    text.push_back(next_token(state, passes, text, number));
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return tokenizer->decode(text);
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
  write_in_turn(state.session, path, *state.stream, without_copies(state, state.adamw.shards()));
  if (state.session.rank() == 0) commit_checkpoint(path);
}

/// Goes on from what --resume or --initial names, if one of them is given; this rank reads what it has, copies too.
/// @return  the steps that were made before.
std::int64_t resume(State& state)
{
  const Options& o = state.options;
  const auto span = state.time.span(Work::io, "reading a checkpoint");
  if (!o.initial.empty())  // the parameters, and nothing else
    for (const Shard& mine : state.adamw.shards())
      read_checkpoint(o.initial, *state.stream, {mine.table, mine.owned, mine.parameters, {}, {}});
  if (!o.resume) return 0;
  const CheckpointInfo saved = check_checkpoint(o.checkpoint, "--checkpoint=" + o.checkpoint);
  for (const Shard& mine : state.adamw.shards()) read_checkpoint(o.checkpoint, *state.stream, mine);
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
  smaller.pipeline = options.pipeline;
  SmallerRun run([&] { return largest_formula(smaller, session.ranks()).total(); }, room);
  const bool keeps_more = options.pipeline.stages_of_a_rank() == 1;  // than the schedule that keeps least
  if ((keeps_more &&
       run.fits_with("--schedule=1f1b", smaller.pipeline.schedule, ScheduleKind::one_forward_one_backward)) ||
      run.fits_with("--recompute=block", smaller.recompute_blocks, true) ||
      (options.gradients == DType::f32 && run.fits_with("--micro-batch=1", smaller.micro_batch, std::int64_t{1})))
    return run.enough();
  return run.least(fmt::format("with {} stages", session.ranks() * options.pipeline.stages_of_a_rank()),
                   "Start more ranks, or use a smaller model.");
}

/// Refuses what cannot be done, before anything is done.
void check(const Options& options, const Session& session)
{
  const ModelConfig config = options.config();
  const int p = session.ranks();
  TrainingOptions chosen = options;  // with the micro-batch that stands for "default"
  chosen.micro_batch = options.batch(p).micro_batch;
  check_options(chosen, {.pp = p});
  check_pipeline(options.pipeline, config, p, options.global_batch, options.global_batch / chosen.micro_batch);
  const Arithmetic arithmetic(options.arithmetic);
  const Algorithm fallback = arithmetic.default_collectives();
  check_options(options.messages, fallback, options.device);
  arithmetic.check_collectives(options.messages.algorithm(fallback));
  const CategoryBytes planned = largest_formula(options, p);
  const std::int64_t limit = options.memory_limit.value;
  check_memory_limit(planned, limit, what_fits(options, session, limit));
  if (options.dry_run) return;
  check_device(options.device);
  check_own_gpus(options.messages.transport, options.device);
  check_room(planned, options.device, what_fits(options, session, room_on(options.device)));
  const Tokens tokens = open_corpus(options.data);
  check_vocabulary(tokens, config.vocabulary);
  check_enough_tokens(tokens, options.batch(p).sequence, options.global_batch);
  check_fits_data(options, tokens);
  check_checkpoints(options, tokens);
}

/// Trains, validates, and tells.
int run(const Options& options, const Session& session)
{
  Report report(session.rank() == 0, options.report);
  begin_job(report, "09_pipeline_parallel", session.ranks());
  const int p = session.ranks();
  const Layout layout{.pp = p};
  const PipelinePlan plan = options.plan(p);
  const TimedSchedule planned = check_schedule(plan.schedule, plan.costs);
  const double flops_per_s = parse_flops(options.messages.flops);
  const std::string formula = "m B T C elements a boundary and direction";
  if (options.dry_run) {
    begin_report(report, layout, options.table, options, {});
    report_plan(report, largest_formula(options, p), options);
    const Traffic sent = row_traffic(plan.schedule, session.rank(), plan.shape.type, plan.rows());
    report.block("traffic", {{"a step", format_bytes(sent.bytes), "", "bytes sent by rank 0; " + formula}});
    report.comment(describe_stages(plan));
    report_schedule(report, plan.schedule, {planned, {}, {}}, flops_per_s);
    return report.finish();
  }
  check_alike(options.table, open_corpus(options.data));
  const std::unique_ptr<State> state = make_state(options, session);
  begin_report(report, layout, options.table, options, state->tokens);
  report_placement(report, session, options.device);
  if (!state->messages.carrier().empty()) report.comment(state->messages.carrier());
  report.comment(fmt::format("collectives by {}; {} micro-batches of {} by {}; {}", describe_algorithm(state->pp),
                             plan.schedule.micro_batches, state->batch.micro_batch, plan.schedule.name,
                             describe_stages(plan)));
  begin_steps(report);
  if (!options.trace.empty()) {
    state->time.record();
    state->ledger.record();
  }

  RunRecord record;
  record.first_step = resume(*state);
  record.from_scratch = !options.resume && options.initial.empty();
  state->adamw.round(*state->kernels);
  state->messages.begin_steps();
  std::vector<float> compared;  // this rank's parameters after --compare steps
  const std::int64_t steps = options.last_step(state->loader);
  for (std::int64_t step = record.first_step; step < steps; ++step) {
    record.steps.push_back(train_step(*state, step));
    report_step(report, step, record.steps.back());
    report.progress(step + 1, steps);
    if (step + 1 == options.compare)
      compared = to_host(*state->stream, without_copies(*state, state->adamw.shards()));
    const bool last = step + 1 == steps;
    if (last || (options.evaluate_every > 0 && (step + 1) % options.evaluate_every == 0)) {
      record.validation.push_back({step + 1, evaluate(*state)});
      report_validation(report, record.validation.back());
    }
    if (checkpoint_is_due(options, step + 1, steps)) save(*state, step + 1);
  }
  record.digest = parameter_digest(state->segments, state->adamw.shards(), state->room.tensor(), state->pp);

  report_loss(report, record, state->config, state->tokens);
  report.check("digest on every rank", "the same", record.digest.substr(0, 12),
               same_on_all_ranks(record.digest, state->pp));
  check_tied(report, state->own, state->adamw.shards(), *state->stream, state->ends.get());
  if (options.compare > 0) {
    const ReferenceRun reference = reference_run_on_rank_0(session, options, state->tokens.train);
    const ParameterDeviation deviation = parameter_deviation(plan.table, state->segments, compared,
                                                             reference.parameters, state->room.tensor(), state->pp);
    if (session.rank() == 0) report_deviation(report, record, reference, deviation, options);
  }
  report_memory(report, session, state->ledger, memory_formula(options, p, session.rank()));
  report_gpu_memory(report, state->ledger, options.device);
  report_traffic(report, "pp", "a step", state->sent,
                 row_traffic(plan.schedule, session.rank(), plan.shape.type, plan.rows()), formula);
  if (p > 1)
    report_traffic(report, "tied", "a step, of the tied embedding", state->sent_tied,
                   tied_traffic(p, session.rank(), options.algorithm(), options.gradients,
                                token_elements(plan.table), options.ends(p)),
                   "2 V C in all, between first and last stage");
  report_schedule(report, plan.schedule,
                  schedule_times(planned, state->performed, state->messages.clock(),
                                 state->messages.last_virtual_step(), plan.schedule, state->pp),
                  flops_per_s);
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
