// Lesson 10: data x tensor x pipeline parallelism on one mesh
//
// Builds on:    lesson 09 (pipeline parallelism)
// New idea:     the N = dp tp pp ranks are points of a mesh, and each has a group along each axis: the parts of every layer (lesson
//               08) inside a stage (lesson 09), and its replicas, which share out the optimizer states (lesson 04). A step is the
//               sum of theirs; what is new is the order in which gradients come together: parts first, in every pass; then
//               replicas; then the two ends of the pipeline, which share the token embedding; and the norm counts each
//               parameter once.
// Memory:       4 P / (tp pp) bytes of parameters, as many of gradients, and 8 P / N of optimizer states (in bf16 12)
// Traffic:      to parts as lesson 08, to stages as lesson 09 (1 / tp of it with --sequence-parallel), to replicas
//               2 (dp-1)/dp P / (tp pp) numbers
// Paper:        Narayanan et al. 2021 (Megatron-LM), section 3; Rajbhandari et al. 2020 (ZeRO), section 5
//
// Sample runs:  build/lessons/10_3d_parallel --steps=3
//               mpirun -np 8 build/lessons/10_3d_parallel --steps=3 --show-groups
//               mpirun -np 4 build/lessons/10_3d_parallel --steps=3 --dp=2 --tp=2 --pp=1 --dropout=0.1
//               mpirun -np 8 build/lessons/10_3d_parallel --steps=3 --arithmetic=exact --sequence-parallel --zero=0
//               mpirun -np 8 build/lessons/10_3d_parallel --steps=3 --schedule=zero-bubble --recompute=block
//             * mpirun -np 8 build/lessons/10_3d_parallel --device=cuda --steps=20    (* needs a GPU; eight of them for NCCL)
// Expect:       the loss column of lesson 01, whatever the mesh is.
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
#include "common/in_turn.hpp"
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
#include "lessons/08_tensor_parallel/part_messages.hpp"
#include "lessons/08_tensor_parallel/row_gradients.hpp"
#include "lessons/08_tensor_parallel/split.hpp"
#include "lessons/08_tensor_parallel/split_plan.hpp"
#include "lessons/08_tensor_parallel/whole_tensors.hpp"
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
#include "lessons/10_3d_parallel/mesh_forecast.hpp"
#include "lessons/10_3d_parallel/mesh_layout.hpp"
#include "lessons/10_3d_parallel/mesh_plan.hpp"
#include "lessons/10_3d_parallel/mesh_traffic.hpp"
#include "lessons/10_3d_parallel/whole_model.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  OptionTable table{"10_3d_parallel", "Data x tensor x pipeline parallelism on one mesh"};
  MessageOptions messages;
  MeshOptions mesh;
  PipelineOptions pipeline;

  Options()
  {
    declare(table, *this);
    declare(table, messages);
    declare(table, mesh);
    declare(table, pipeline);
  }

  /// The sequences of the global batch that one replica computes.
  std::int64_t share(const Layout& layout) const { return global_batch / layout.dp; }
  /// G, B and T.
  BatchShape batch(const Layout& layout) const
  {
    return TrainingOptions::batch(default_micro_batch(pipeline, share(layout), static_cast<int>(layout.pp)));
  }
  /// By which all sums over ranks are made.
  Algorithm algorithm() const { return messages.algorithm(Arithmetic(arithmetic).default_collectives()); }
  /// Which ranks share a node.
  Topology topology() const { return topology_of_job(messages.ranks_per_node, device); }
  /// What one of N ranks has, does and sends.
  MeshPlan plan(int rank, int ranks) const
  {
    const Layout layout = mesh.layout(ranks);
    const Place place = place_of(layout, rank);
    const Part part{place.tp, static_cast<int>(layout.tp)};
    ActivationShape shape = divided(activation_shape(batch(layout).micro_batch, part), mesh.split(ranks), part);
    shape.gradients = gradients;
    const Arithmetic sums(arithmetic);
    return {layout,
            place,
            {config(), shape, pipeline, static_cast<int>(layout.pp), share(layout) / shape.B},
            mesh.zero == 1,
            gradients,
            sums.keeps_tied_apart(),
            algorithm(),
            topology()};
  }
};

// ---- State -----------------------------------------------------------------------------------------------------------

/// One of this rank's stages, with what it computes with.
struct OwnStage {
  PipelineStage stage;                     // which
  Model model;                             // its run of the chain, this part of it
  ParameterTable table;                    // of its own elements
  Tensor parameters;                       // (its flat vector)
  ModelTensors weights;                    // views of them
  std::unique_ptr<GradientSum> gradients;  // of all of them
  std::vector<RowGradients> over_rows;     // of what all parts have: one, or one for each micro-batch in flight
  Stash stash;                             // what its micro-batches in flight keep
};

/// What this rank holds.
struct State {
  State(const Options& o, const Session& s) : options(o), session(s) {}

  const Options& options;                                         // what was asked for
  const Session& session;                                         // rank of N = dp tp pp
  ModelConfig config = options.config();                          // L, H, C, V
  MeshPlan plan = options.plan(session.rank(), session.ranks());  // who has what, and does what when
  BatchShape batch = options.batch(plan.layout);                  // G, B, T
  ActivationShape shape = plan.pipeline.shape;                    // of one micro-batch

  TimeLedger time;                                               // where the time goes
  MemoryLedger ledger{options.memory_limit.value};               // counts every buffer below
  std::unique_ptr<Device> device = make_device(options.device);  // where everything lies
  std::unique_ptr<Stream> stream = device->make_stream();        // the order in which it works
  DeviceMemory memory{device.get(), &ledger};                    // the device's memory, counted
  Arithmetic arithmetic{options.arithmetic, options.tf32};       // the order of sums
  Messages messages{options.messages, memory, *stream, time};    // who counts them and who watches
  GroupSetup setup = messages.setup(arithmetic.default_collectives());
  Mesh mesh{session, axes_of(plan.layout), setup};  // all N ranks, and this rank's line along each axis
  Group &pp = mesh.group("pp"), &dp = mesh.group("dp"), &tp = mesh.group("tp"), &world = mesh.world();
  std::unique_ptr<Group> ends = group_of_ends(pp, setup);                       // who has the token embedding
  std::unique_ptr<Kernels> kernels = arithmetic.make_kernels(memory, *stream);  // what the pieces compute with

  Tokens tokens = open_corpus(options.data);                                     // the text
  Loader loader{tokens.train, options.loader_options()};                         // deals out its windows
  Range share = Partition(options.global_batch, dp.ranks()).segment(dp.rank());  // of the global batch
  Batch host_batch;                                   // windows on their way to the device
  Schedule schedule = options.schedule_over(loader);  // the learning rate of each step

  std::vector<Range> own = plan.ranges();       // of the table of this part: what this rank has
  std::vector<Range> updated = plan.updated();  // of each of them: what it updates
  Buffer parameters{memory, Category::parameters, shape.type, {elements_of(own)}, "parameters"};  // (P/(tp pp))
  ShardedAdamW adamw{memory,       *stream, plan.pipeline.table, updated, updated_of(cut(parameters.tensor(), own)),
                     options.adamw};  // (P/N) states
  Buffer room{memory, Category::communication, DType::f32, {whole_block_elements(plan.pipeline.table)}, "a block"};

  Pipeline pipeline{pp, plan.pipeline.schedule.virtual_stages, setup, shape.type, plan.pipeline.rows(), time};
  Workspace work{memory, config, shape};                                 // scratch of all passes
  PartMessages parts{tp, shape, config.channels, work, *kernels, time};  // sums over the parts, and rows
  std::vector<OwnStage> stages;                                          // of this rank
  std::vector<PerformedAction> performed;                                // in the last step
  Sent to_parts, to_stages, to_other_end, to_replicas;                   // in one step

  /// Of tensors of all ranges, what this rank updates.
  std::vector<Tensor> updated_of(const std::vector<Tensor>& of_ranges) const
  {
    std::vector<Tensor> views;
    for (std::size_t i = 0; i < own.size(); ++i)
      views.push_back(of_ranges[i].slice({updated[i].first - own[i].first, updated[i].count}));
    return views;
  }
  /// What this rank has sent so far in these groups.
  Sent sent(const std::vector<std::string>& groups) { return sent_in(messages.traffic(), groups, session.ranks()); }
  /// The stage of an action.
  OwnStage& stage_of(const Action& action)
  {
    return stages[static_cast<std::size_t>(action.stage / plan.pipeline.schedule.ranks)];
  }
};

/// Copies every parameter from the replica that updates it to all others.
void gather_parameters(State& state)
{
  if (!state.plan.zero) return;
  const auto span = state.time.span(Work::exposed, "gathering parameters");
  for (const Tensor& range : cut(state.parameters.tensor(), state.own)) all_gather(range, state.dp);
}

/// A state in which what this rank updates has its initial values.
std::unique_ptr<State> make_state(const Options& options, const Session& session)
{
  omp_set_num_threads(options.threads);
  auto state = std::make_unique<State>(options, session);
  for (const Shard& mine : state->adamw.shards())
    initialize_parameters(*state->stream, mine.parameters, mine.table, state->config, options.seed,
                          mine.owned.first);

  state->plan.reserve_scratch(state->tp);
  const PipelinePlan& plan = state->plan.pipeline;
  std::int64_t first = 0;  // of the stage's parameters
  for (const PipelineStage& stage : state->plan.stages()) {
    const Tensor flat = state->parameters.tensor().slice({first, stage.size()});
    const int places = plan.in_flight(stage);
    OwnStage& own = state->stages.emplace_back(OwnStage{
        stage,
        Model({state->config, state->kernels.get(), state->shape.part, options.dropout, options.seed}, stage.units),
        ParameterTable(state->config, state->shape.part, stage.units),
        flat,
        stage_tensors(plan.table, stage, flat),
        state->arithmetic.make_gradient_sum(*state->kernels, *state->stream, state->memory,
                                            gradient_layout(plan.table, stage, options.gradients)),
        {},
        Stash(state->memory, state->config, plan.shape_of(stage), state->work, places)});
    for (int place = 0; place < (state->shape.puts_weights_off ? places : 1); ++place)
      own.over_rows.emplace_back(state->memory, *state->stream, own.table, state->shape, *state->kernels);
    first += stage.size();
  }
  return state;
}

/// The same bytes by category, from the sizes alone, of one of N ranks.
CategoryBytes memory_formula(const Options& options, int rank, int ranks)
{
  const MeshPlan plan = options.plan(rank, ranks);
  const PipelinePlan& pipeline = plan.pipeline;
  CategoryBytes bytes;
  for (const PipelineStage& stage : plan.stages())
    bytes += Arithmetic(options.arithmetic)
                 .gradient_bytes(gradient_layout(pipeline.table, stage, options.gradients),
                                 pipeline.schedule.micro_batches);
  bytes[Category::parameters] = bytes_of(options.precision) * elements_of(plan.ranges());
  bytes[Category::optimizer] = adamw_bytes(elements_of(plan.updated()), options.precision);
  bytes[Category::activations] = pipeline.activation_bytes(plan.place.pp);
  bytes[Category::workspace] = workspace_bytes(pipeline.config, pipeline.shape) + kernel_bytes(options.device);
  bytes[Category::communication] = plan.message_bytes();
  return bytes;
}

/// Those of the rank that needs most.
CategoryBytes largest_formula(const Options& options, int ranks)
{
  CategoryBytes largest;
  for (int rank = 0; rank < ranks; ++rank)
    if (const CategoryBytes bytes = memory_formula(options, rank, ranks); bytes.total() > largest.total())
      largest = bytes;
  return largest;
}

// ---- Forward and backward pass ---------------------------------------------------------------------------------------

/// Forward pass of branches [first, last) of a stage. The rows behind its last branch go to @p room, or to nobody where the
/// stage that wants them has them already.
void forward_branches(State& state, const OwnStage& own, std::size_t first, std::size_t last, const InFlight& m,
                      const Tensor& room = {})
{
  const Activations& kept = m.kept;
  const Tensor& output = state.work.output;
  const MicroBatch rows = tokens_of(m.batch, state.shape.tokens);  // between the divided layers: this rank's
  for (std::size_t i = first; i < last; ++i) {
    const Branch& branch = own.model.branches[i];
    const BranchTensors& p = own.weights.branches[i];
    const bool sent_on = i + 1 == own.model.branches.size() && !own.stage.last;
    const Tensor& next = sent_on ? room : kept.stream(i + 1);
    branch.normalise(state.parts.own(kept.branches[i]), p);
    branch.apply(output, state.parts.gathered(kept.branches[i]), p, m.batch);
    const Tensor sum = state.parts.sum(output);
    if (!next.empty()) branch.add(next, kept.branches[i], sum, p, rows);
  }
}

/// The head's loss over a divided vocabulary.
LossSum vocabulary_parallel_loss(State& state, const OwnStage& own, const InFlight& m)
{
  const Head& head = own.model.head;
  head.normalise(state.parts.own(m.kept.head), own.weights.head);
  const HeadActivations a = state.parts.gathered(m.kept.head);
  head.logits(a, own.weights.head);
  head.row_maximum(a);
  state.parts.largest(a.maximum);
  head.row_sum(a, m.batch);
  state.parts.sum_numbers(a.sum);
  state.parts.sum_numbers(a.target_logit);
  return head.loss(a, m.batch);
}

/// Forward pass of a stage.
/// @param rows  in front of it.
/// @param room  for those behind it.
/// @return  the sum of losses, in the last stage.
LossSum forward(State& state, const OwnStage& own, const InFlight& m, const Tensor& rows, const Tensor& room)
{
  const Model& model = own.model;
  const Tensor& output = state.work.output;
  if (own.stage.first) {
    model.embedding.lookup(output, own.weights.embedding, m.batch);
    model.embedding.add(m.kept.stream(0), state.parts.sum(output), own.weights.embedding,
                        tokens_of(m.batch, state.shape.tokens));
  } else {
    state.stream->copy(m.kept.stream(0), rows);
  }
  forward_branches(state, own, 0, model.branches.size(), m, room);
  return own.stage.last ? vocabulary_parallel_loss(state, own, m) : LossSum{};
}

/// Adds the gradient of the sum of losses with respect to the stage's parameters to @p d.
/// @param rows  the gradient of those behind it.
/// @param room  for the gradient of those in front of it.
void backward(State& state, const OwnStage& own, const ModelTensors& d, const InFlight& m, const Tensor& rows,
              const Tensor& room)
{
  const Model& model = own.model;
  const ModelTensors& p = own.weights;
  const Activations& kept = m.kept;
  const Tensor &dx = state.work.dstream, &output = state.work.output;
  const MicroBatch part = tokens_of(m.batch, state.shape.tokens);
  const RowGradients& over_rows = own.over_rows.front();

  if (own.stage.last) {
    model.head.apply_backward(output, d.head, state.parts.regathered(kept.head), p.head, m.batch);
    const Tensor dhead = state.parts.sum(output);
    state.stream->zero(dx);
    over_rows.normalise_backward(model.head, dx, d.head, dhead, kept.head, p.head, part);
  } else {
    state.stream->copy(dx, rows);
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, own, i - 1, i + 1, m);

    const Branch& branch = model.branches[i];
    const BranchActivations& a = kept.branches[i];
    const Tensor mine = over_rows.add_backward(branch, d.branches[i], dx, output, part);
    const Tensor doutput = state.parts.gather(mine, output);
    branch.apply_backward(output, d.branches[i], doutput, state.work.wide, state.parts.regathered(a), p.branches[i],
                          m.batch);
    const Tensor dnormalised = state.parts.sum(output);
    over_rows.normalise_backward(branch, dx, d.branches[i], dnormalised, a, p.branches[i], part);
  }
  if (own.stage.first)
    model.embedding.backward(d.embedding, state.parts.gather(dx, output), m.batch);
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
  const MicroBatch part = tokens_of(m.batch, state.shape.tokens);
  const RowGradients& over_rows = own.over_rows[m.place];
  Stream& stream = *state.stream;

  if (own.stage.last) {
    model.head.logits_backward(output, kept.head, p.head, m.batch);
    const Tensor dhead = state.parts.sum(output);
    for (const Tensor& zero : {dx, later.norm_weight, later.norm_bias}) stream.zero(zero);
    over_rows.normalise_backward(model.head, dx, {later.norm_weight, later.norm_bias, {}}, dhead, kept.head, p.head,
                                 part);
  } else {
    stream.copy(dx, rows);
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, own, i - 1, i + 1, m);

    const Branch& branch = model.branches[i];
    const BranchActivations& a = kept.branches[i];
    const PutOffBranch& l = later.branches[i];
    const Tensor mine = over_rows.output_backward(branch, dx, output, part);
    const Tensor doutput = state.parts.gather(mine, l.doutput);
    if (doutput.raw() != l.doutput.raw()) stream.copy(l.doutput, doutput);
    const Tensor dhidden = state.work.wide.slice({0, a.hidden.elements()});
    branch.inner_backward(l.dinner, dhidden, l.doutput, a, p.branches[i], m.batch);
    branch.normalised_backward(output, l.dinner, p.branches[i], m.batch);
    const Tensor dnormalised = state.parts.sum(output);
    for (const Tensor& zero : {l.norm_weight, l.norm_bias}) stream.zero(zero);
    over_rows.normalise_backward(branch, dx, {l.norm_weight, l.norm_bias, {}, {}, {}, {}}, dnormalised, a,
                                 p.branches[i], part);
  }
  if (!own.stage.first) return stream.copy(room, dx);
  const Tensor all = state.parts.gather(dx, later.stream);
  if (all.raw() != later.stream.raw()) stream.copy(later.stream, all);
}

/// The second half, which nobody waits for: the gradients of the stage's parameters, added to @p d.
void backward_weights(State& state, const OwnStage& own, const ModelTensors& d, const InFlight& m)
{
  const Model& model = own.model;
  const Activations& kept = m.kept;
  const PutOff& later = kept.put_off;
  const Kernels& kernels = *state.kernels;
  const RowGradients& over_rows = own.over_rows[m.place];

  if (own.stage.last) {
    model.head.weights_backward(d.head, state.parts.regathered(kept.head), m.batch);
    kernels.add(d.head.norm_weight, later.norm_weight);
    kernels.add(d.head.norm_bias, later.norm_bias);
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (state.shape.recompute && last_of_block) forward_branches(state, own, i - 1, i + 1, m);

    const Branch& branch = model.branches[i];
    const PutOffBranch& l = later.branches[i];
    over_rows.out_bias_backward(branch, d.branches[i], l.doutput, m.batch);
    branch.weights_backward(d.branches[i], l.doutput, l.dinner, state.parts.regathered(kept.branches[i]), m.batch);
    kernels.add(d.branches[i].norm_weight, l.norm_weight);
    kernels.add(d.branches[i].norm_bias, l.norm_bias);
  }
  if (own.stage.first) model.embedding.backward(d.embedding, later.stream, m.batch);
}

// ---- Training --------------------------------------------------------------------------------------------------------

/// The sequences of the global batch that a micro-batch is.
Range sequences_of(const State& state, const Action& action)
{
  return {state.share.first + action.micro_batch * state.batch.micro_batch, state.batch.micro_batch};
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
    const ModelTensors tensors = stage_tensors(state.plan.pipeline.table, own.stage, d.flat, d.tied);
    if (action.kind == ActionKind::backward)
      backward(state, own, tensors, m, rows, room);
    else
      backward_weights(state, own, tensors, m);
    own.over_rows[state.shape.puts_weights_off ? m.place : 0].add_to(d.flat, state.tp);
    own.gradients->end(m.batch.rows.sequences);
  }
  own.stash.after(action, true);
  if (VirtualClock* clock = state.messages.clock())
    clock->charge_compute(state.plan.pipeline.costs[static_cast<std::size_t>(action.stage)].of(action.kind),
                          name_of(action.kind));
}

/// Sums over the replicas; with ZeRO-1 each is left with what it updates.
void sum_over_replicas(State& state, const Tensor& range)
{
  if (state.plan.zero)
    reduce_scatter_sum(range, state.dp);
  else
    all_reduce_sum(range, state.dp);
}

/// The gradients of what this rank updates, range by range. Replicas first; then the token embedding's, which is the sum of
/// what both ends of the pipeline have.
std::vector<Tensor> whole_gradients(State& state)
{
  const auto span = state.time.span(Work::exposed, "summing gradients");
  std::vector<Tensor> ranges;
  for (OwnStage& own : state.stages) {
    const std::vector<Range> lengths = ranges_of(state.plan.pipeline.table, own.stage);
    const std::vector<Tensor> sums = own.gradients->sums();
    for (const Tensor& range : cut(sums.front(), lengths)) sum_over_replicas(state, range);
    if (sums.size() > 1) sum_over_replicas(state, sums.back());
    for (const Tensor& range : cut(own.gradients->total(), lengths)) ranges.push_back(range);
  }
  std::vector<Tensor> gradients = state.updated_of(ranges);
  for (std::size_t i = 0; state.ends && i < gradients.size(); ++i)
    if (state.own[i].first == 0) all_reduce_sum(gradients[i], *state.ends);
  return gradients;
}

/// The sum of the squares of all gradients of the model.
double squared_norm(State& state, const std::vector<Tensor>& gradients)
{
  decltype(LossSum::nats) sum;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    for (const Range& range : state.plan.counted(state.own[i]))
      sum += state.kernels->squared_norm(gradients[i].slice({range.first - state.updated[i].first, range.count}));
  all_reduce_sum(sum, state.tp);
  all_reduce_sum(sum, state.pp);
  if (state.plan.zero) all_reduce_sum(sum, state.dp);
  return sum.value();
}

/// One optimizer step over the global batch; this replica's share of it in m micro-batches of B.
StepReport train_step(State& state, std::int64_t step)
{
  const Stopwatch clock;
  const auto span = state.time.span(Work::compute, "training step");
  LossSum loss;
  for (OwnStage& own : state.stages) own.gradients->clear();
  const Sent tp_before = state.sent({"tp"}), pp_before = state.sent({rows_group, gradients_group});
  state.performed = state.pipeline.run(state.plan.pipeline.schedule,
                                       [&](const Action& action, const Tensor& rows, const Tensor& room) {
                                         perform(state, action, step, rows, room, loss);
                                       });
  state.to_parts = state.sent({"tp"}) - tp_before;
  state.to_stages = state.sent({rows_group, gradients_group}) - pp_before;

  const Sent dp_before = state.sent({"dp"}), tied_before = state.sent({"tied"});
  const std::vector<Tensor> gradients = whole_gradients(state);
  state.to_replicas = state.sent({"dp"}) - dp_before;
  state.to_other_end = state.sent({"tied"}) - tied_before;
  all_reduce_sum(loss, state.dp);
  all_reduce_sum(loss, state.pp);

  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  const double norm = std::sqrt(squared_norm(state, gradients)) / valid_tokens;
  const double learning_rate = state.schedule.at(step);
  check_finite(step, loss.mean(), norm, *state.kernels, state.adamw.shards(), gradients, state.world);
  state.adamw.step(*state.kernels, gradients, learning_rate, clip_factor(norm, state.options.clip) / valid_tokens);
  const Sent before_gather = state.sent({"dp"});
  gather_parameters(state);
  state.to_replicas += state.sent({"dp"}) - before_gather;
  state.stream->synchronise();
  state.messages.end_step();
  return {loss.mean(), norm, learning_rate, clock.seconds()};
}

/// The mean loss over the whole validation split; each replica takes every dp-th pass.
double evaluate(State& state)
{
  const auto span = state.time.span(Work::compute, "validation");
  const Loader validation(state.tokens.validation, state.options.loader_options());
  const std::int64_t B = state.batch.micro_batch, all = (validation.windows() + B - 1) / B;
  const std::int64_t replicas = state.dp.ranks(), replica = state.dp.rank();
  LossSum loss;
  const auto perform_forward = [&](const Action& action, const Tensor& rows, const Tensor& room) {
    OwnStage& own = state.stage_of(action);
    InFlight& m = own.stash.before(action);
    const Range windows{(action.micro_batch * replicas + replica) * B, B};
    validation.load_in_order(intersect(windows, {0, validation.windows()}), state.host_batch);
    pad(state.host_batch, B);
    m.batch = place(m.kept, *state.stream, state.host_batch, {0, B}, 0);
    m.batch.training = false;
    loss += forward(state, own, m, rows, room);
    own.stash.after(action, false);
  };
  const std::int64_t passes = (all - replica + replicas - 1) / replicas;  // of this replica
  if (passes > 0)
    state.pipeline.run(
        forward_only(state.pp.ranks(), state.plan.pipeline.schedule.virtual_stages, static_cast<int>(passes)),
        perform_forward);
  all_reduce_sum(loss, state.dp);
  all_reduce_sum(loss, state.pp);
  return loss.mean();
}

/// The token that follows @p text, the same on all ranks. It is not known before all stages have been passed through, one
/// after the other: each tells the others what it has made.
/// @param passes  of this rank's stages.
Token next_token(State& state, std::vector<GeneratingPass>& passes, const Tensor& logits,
                 const std::vector<Token>& text, std::int64_t number)
{
  std::int64_t token = 0;  // on the ranks that have the head; the others add nothing
  for (GeneratingPass& pass : passes) pass.begin(text);
  pass_through(state.plan.pipeline.stages, state.pp, passes, [&](const PipelineStage& stage, std::size_t place) {
    GeneratingPass& pass = passes[place];
    const ModelTensors& weights = state.stages[place].weights;
    if (stage.first) {
      all_reduce_sum(pass.lookup(weights.embedding), state.tp);
      pass.add(weights.embedding);
    }
    for (std::size_t i = 0; i < weights.branches.size(); ++i) {
      all_reduce_sum(pass.apply(i, weights.branches[i]), state.tp);
      pass.add(i, weights.branches[i]);
    }
    if (!stage.last) return;
    const std::int64_t stored = logits.elements() / state.tp.ranks();
    state.stream->copy(logits.slice({state.tp.rank() * stored, stored}), pass.logits(weights.head));
    all_gather(logits, state.tp);
    token = pick_token(read_logits(*state.stream, logits, state.config), state.options.sampling, number);
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
  const std::int64_t stored = state.tp.ranks() * state.config.stored_vocabulary(state.tp.ranks());
  const Buffer logits(state.memory, Category::workspace, state.shape.type, {stored}, "all logits");
  const std::vector<Token> prompt = tokenizer->encode("\n");
  std::vector<Token> text = prompt;
  for (std::int64_t number = 0; number < state.options.sample; ++number)
    text.push_back(next_token(state, passes, logits.tensor(), text, number));
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return tokenizer->decode(text);
}

// ---- Checkpoints -----------------------------------------------------------------------------------------------------

/// Saves the state after @p step steps; each rank what it answers for, one after the other. The checkpoint before it stays
/// until this one is complete.
void save(State& state, std::int64_t step)
{
  const auto span = state.time.span(Work::io, "saving a checkpoint");
  const std::string& path = state.options.checkpoint;
  if (state.session.rank() == 0)
    create_checkpoint(path, {.config = state.config,
                             .step = step,
                             .updates = state.adamw.updates(),
                             .options = run_options(state.options, state.tokens)});
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < state.own.size(); ++i) {
    const Shard& all = state.adamw.shards()[i];
    for (const Range& range : state.plan.counted(state.own[i])) {
      const Range at{range.first - all.owned.first, range.count};
      shards.push_back(
          {all.table, range, all.parameters.slice(at), all.first_moments.slice(at), all.second_moments.slice(at)});
    }
  }
  if (!state.plan.zero && state.dp.rank() != 0) shards.clear();
  write_in_turn(state.session, path, *state.stream, shards);
  if (state.session.rank() == 0) commit_checkpoint(path);
}

/// Goes on from what --resume or --initial names, if one of them is given; this rank reads what it updates, copies too.
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

/// Sets the options of another run as those of this one.
void copy(const Options& options, Options& other)
{
  static_cast<TrainingOptions&>(other) = options;
  other.messages = options.messages;
  other.mesh = options.mesh;
  other.pipeline = options.pipeline;
}

/// Refuses a mesh by which this model and batch cannot be divided.
void check_mesh_of(const Options& options, int ranks)
{
  check_mesh_options(options.mesh, ranks);
  const ModelConfig config = options.config();
  const Layout layout = options.mesh.layout(ranks);
  const BatchShape batch = options.batch(layout);
  check_split(options.mesh.split(ranks), config, batch.sequence, static_cast<int>(layout.tp));
  check_share(options.global_batch, static_cast<int>(layout.dp));
  check_algorithm(options.algorithm(), options.topology(), axes_of(layout));
  TrainingOptions chosen = options;  // with the micro-batch that stands for "default"
  chosen.micro_batch = batch.micro_batch;
  check_options(chosen, layout);
  const std::int64_t share = options.share(layout);
  check_pipeline(options.pipeline, config, static_cast<int>(layout.pp), share, share / chosen.micro_batch);
}

/// What the same run would need and take on another mesh of as many ranks, no time without links; nothing where it cannot be
/// cut so.
std::optional<MeshForecast> forecast(const Options& options, const Layout& layout, int ranks)
{
  Options other;
  copy(options, other);
  other.mesh.dp = static_cast<int>(layout.dp);
  other.mesh.tp = static_cast<int>(layout.tp);
  other.mesh.pp = static_cast<int>(layout.pp);
  if (layout.tp == 1) other.mesh.sequence_parallel = other.mesh.regather = false;
  try {
    check_mesh_of(other, ranks);
  } catch (const UserError&) {
    return {};
  }
  const MessageOptions& m = options.messages;
  const double step_s =
      m.link.empty() ? 0 : step_seconds(other.plan(0, ranks), parse_link(m.link), parse_flops(m.flops));
  return MeshForecast{layout, largest_formula(other, ranks).total(), step_s};
}

/// What would make a run fit that has no room, as a sentence.
std::string what_fits(const Options& options, const Session& session, std::int64_t room)
{
  Options smaller;
  copy(options, smaller);
  SmallerRun run([&] { return largest_formula(smaller, session.ranks()).total(); }, room);
  const bool keeps_more = options.pipeline.stages_of_a_rank() == 1;  // than the schedule that keeps least
  if (run.fits_with("--zero=1", smaller.mesh.zero, 1) ||
      (keeps_more &&
       run.fits_with("--schedule=1f1b", smaller.pipeline.schedule, ScheduleKind::one_forward_one_backward)) ||
      run.fits_with("--recompute=block", smaller.recompute_blocks, true) ||
      (options.gradients == DType::f32 && run.fits_with("--micro-batch=1", smaller.micro_batch, std::int64_t{1})))
    return run.enough();
  const auto other =
      fastest_mesh(session.ranks(), room, [&](const Layout& l) { return forecast(smaller, l, session.ranks()); });
  return run.least("on this mesh", other ? fmt::format("With these options --dp={} --tp={} --pp={} has room.",
                                                       other->layout.dp, other->layout.tp, other->layout.pp)
                                         : "Start more ranks, or use a smaller model.");
}

/// Refuses what cannot be done, before anything is done.
void check(const Options& options, const Session& session)
{
  check_mesh_of(options, session.ranks());
  const Arithmetic arithmetic(options.arithmetic);
  const Algorithm fallback = arithmetic.default_collectives();
  check_options(options.messages, fallback, options.device);
  arithmetic.check_collectives(options.messages.algorithm(fallback));
  const CategoryBytes planned = largest_formula(options, session.ranks());
  const std::int64_t limit = options.memory_limit.value;
  const auto advice = [&](std::int64_t room) {  // looks at all meshes, so only where it is wanted
    return room == 0 || planned.total() <= room ? "" : what_fits(options, session, room);
  };
  check_memory_limit(planned, limit, advice(limit));
  if (options.dry_run) return;
  check_device(options.device);
  check_own_gpus(options.messages.transport, options.device);
  check_room(planned, options.device, advice(room_on(options.device)));
  const Tokens tokens = open_corpus(options.data);
  check_vocabulary(tokens, options.config().vocabulary);
  check_enough_tokens(tokens, options.batch(options.mesh.layout(session.ranks())).sequence, options.global_batch);
  check_fits_data(options, tokens);
  check_checkpoints(options, tokens);
}

/// What this rank updates, f32, range by range.
std::vector<Tensor> masters(const State& state)
{
  std::vector<Tensor> tensors;
  for (const Shard& shard : state.adamw.shards()) tensors.push_back(shard.parameters);
  return tensors;
}

/// What this rank sent in a step along each axis, and to whom.
void report_traffic(Report& report, const State& state)
{
  const MeshPlan& plan = state.plan;
  const auto tell = [&](const std::string& axis, const std::string& what, const Sent& sent, const Traffic& expected,
                        const std::string& formula) {
    report_traffic(report, axis, what, sent.traffic, expected, formula);
    report_receivers(report, state.session, axis, sent, plan.line(axis));
  };
  tell("tp", "a step, to parts", state.to_parts, plan.to_parts(), describe_part_traffic(state.shape));
  tell("pp", "a step, to stages", state.to_stages, plan.to_stages(), "m B T C elements a boundary and direction");
  tell("tied", "a step, of the tied embedding", state.to_other_end, plan.to_other_end(),
       "2 V C / tp in all, between first and last stage");
  tell("dp", "a step, to replicas", state.to_replicas, plan.to_replicas(), "2 (dp-1)/dp of a stage's part");
}

/// Trains, validates, and tells.
int run(const Options& options, const Session& session)
{
  Report report(session.rank() == 0, options.report);
  begin_job(report, "10_3d_parallel", session.ranks());
  const MeshPlan plan = options.plan(session.rank(), session.ranks());
  const TimedSchedule planned = check_schedule(plan.pipeline.schedule, plan.pipeline.costs);
  const double flops_per_s = parse_flops(options.messages.flops);
  if (options.dry_run) {
    begin_report(report, plan.layout, options.table, options, {});
    report_plan(report, largest_formula(options, session.ranks()), options);
    const auto line = [](const char* name, const Traffic& sent) {
      return Line{name, format_bytes(sent.bytes), "", "bytes a step, sent by rank 0"};
    };
    report.block("traffic", {line("tp", plan.to_parts()), line("pp", plan.to_stages()),
                             line("tied", plan.to_other_end()), line("dp", plan.to_replicas())});
    report.comment(describe_stages(plan.pipeline));
    report_schedule(report, plan.pipeline.schedule, {planned, {}, {}}, flops_per_s);
    if (!options.messages.link.empty())
      report_meshes(report, session.ranks(), options.memory_limit.value,
                    [&](const Layout& layout) { return forecast(options, layout, session.ranks()); });
    return report.finish();
  }
  check_alike(options.table, open_corpus(options.data));
  const std::unique_ptr<State> state = make_state(options, session);
  begin_report(report, plan.layout, options.table, options, state->tokens);
  report_placement(report, session, options.device);
  if (!state->messages.carrier().empty()) report.comment(state->messages.carrier());
  report.comment(fmt::format("dp={} tp={} pp={}; collectives by {}; {} micro-batches of {} by {}; {}",
                             plan.layout.dp, plan.layout.tp, plan.layout.pp, describe_algorithm(state->world),
                             plan.pipeline.schedule.micro_batches, state->batch.micro_batch,
                             plan.pipeline.schedule.name, describe_stages(plan.pipeline)));
  const std::string groups = state->mesh.table();
  if (options.mesh.show_groups) report.comment(groups);
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
  std::vector<std::vector<float>> compared;  // what this rank updates, after --compare steps
  const std::int64_t steps = options.last_step(state->loader);
  for (std::int64_t step = record.first_step; step < steps; ++step) {
    record.steps.push_back(train_step(*state, step));
    report_step(report, step, record.steps.back());
    report.progress(step + 1, steps);
    if (step + 1 == options.compare)
      for (const Tensor& master : masters(*state)) compared.push_back(to_host<float>(*state->stream, master));
    const bool last = step + 1 == steps;
    if (last || (options.evaluate_every > 0 && (step + 1) % options.evaluate_every == 0)) {
      record.validation.push_back({step + 1, evaluate(*state)});
      report_validation(report, record.validation.back());
    }
    if (checkpoint_is_due(options, step + 1, steps)) save(*state, step + 1);
  }
  const UnitOwners owners = owners_of(plan.pipeline, state->pp);
  const auto whole = [&](const std::vector<Tensor>& shards) {
    return whole_model(plan, shards, owners, state->tp, state->dp);
  };
  record.digest = parameter_digest(whole(masters(*state)), state->room.tensor());

  report_loss(report, record, state->config, state->tokens);
  report.check("digest on every rank", "the same", record.digest.substr(0, 12),
               same_on_all_ranks(record.digest, state->world));
  check_tied(report, state->own, state->adamw.shards(), *state->stream, state->ends.get());
  if (options.compare > 0) {
    const ReferenceRun reference = reference_run_on_rank_0(session, options, state->tokens.train);
    std::vector<Tensor> parameters;
    for (std::vector<float>& values : compared)
      parameters.emplace_back(std::span<float>(values), Shape{static_cast<std::int64_t>(values.size())});
    const ParameterDeviation deviation =
        parameter_deviation(whole(parameters), reference.parameters, state->room.tensor());
    if (session.rank() == 0) report_deviation(report, record, reference, deviation, options);
  }
  report_memory(report, session, state->ledger, memory_formula(options, session.rank(), session.ranks()));
  report_gpu_memory(report, state->ledger, options.device);
  report_traffic(report, *state);
  report_schedule(report, plan.pipeline.schedule,
                  schedule_times(planned, state->performed, state->messages.clock(),
                                 state->messages.last_virtual_step(), plan.pipeline.schedule, state->pp),
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
