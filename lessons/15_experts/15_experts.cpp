// Lesson 15: Expert parallelism (mixture of experts)
//
// Builds on:    lesson 03 (DDP) and lesson 02 (all-to-all)
// New idea:     In some blocks E MLPs, the experts, take the place of one, and a router sends each token to k of them:
//               E times the parameters of these MLPs at k times their arithmetic. The e ranks of a group share the
//               experts, E / e each. Tokens travel to their experts and back by all-to-all, whose blocks are as large as
//               the router decides: counts first, then rows.
// Memory:       16 (D + P_E / e) bytes of model state per rank, for D dense parameters and P_E of all experts; buffers
//               for all rows that a rank can receive: e times its own without a capacity
// Traffic:      world: 8 D (N-1)/N bytes per rank and step, as in lesson 03; replicas: 8 P_E / e of them, among N / e;
//               experts: about 4 k R C (e-1)/e elements per block and micro-batch of R tokens, as the routing decides
// Paper:        Shazeer et al. 2017; Lepikhin et al. 2021 (GShard); Fedus et al. 2022 (Switch Transformer)
//
// Sample runs:  mpirun -np 4 build/lessons/15_experts --steps=5
//               mpirun -np 4 build/lessons/15_experts --steps=3 --arithmetic=exact --ep=2 --experts-per-token=2
//               mpirun -np 2 build/lessons/15_experts --steps=3 --capacity-factor=1.25 --compare=3
//             * mpirun -np 4 build/lessons/15_experts --device=cuda --steps=20      (* needs a GPU; four of them for NCCL)
// Expect:       one loss column, whatever --ep is; with --experts=1 that of lesson 01.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/messages/mesh.hpp"
#include "gpt2/generate.hpp"
#include "lessons/frame/train.hpp"
#include "lessons/parallel/experts/expert_exchange.hpp"
#include "lessons/parallel/experts/expert_gradients.hpp"
#include "lessons/parallel/experts/experts_costs.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"

namespace rankwise {

/// A training step of one rank, which holds the dense parameters and E / e experts of each block that has some. The
/// frame (lessons/frame/train.hpp) does everything outside of a step.
class Experts {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Rank r computes G / N sequences, in micro-batches of B, as in lesson 03. The ranks of a group that shares the
    // experts take neighbouring shares, and pass through their micro-batches together.
    LossSum loss;
    dense_gradients->clear();
    expert_gradients.clear();
    exchange.begin_step();
    {
      // Messages are counted by kind: of dense gradients, of experts' gradients, and of rows on their way.
      const auto sent_world = run.count("world"), sent_replicas = run.count("replicas"),
                 sent_rows = run.count("experts");
      for (std::int64_t first = share.first; first < share.end(); first += run.batch.micro_batch) {
        const Range sequences{first, run.batch.micro_batch};
        const MicroBatch batch = run.load(kept, sequences, step);
        const GradientTensors d = dense_gradients->begin(sequences);
        // NEW: the gradients of an expert are sums over the rows that all ranks of the group sent it.
        expert_gradients.begin(sequences);
        // Both passes wait for rows of the whole group, so its ranks are never a micro-batch apart.
        loss += forward(batch, work, kept);
        backward(model_tensors(table, d), batch);
        dense_gradients->end(sequences);
        expert_gradients.end(sequences);
      }
      // Every rank has the dense parameters, so their gradients are summed over all N ranks.
      const auto span = run.time.span(Work::exposed, "summing gradients");
      for (const PartialSum& sum : dense_gradients->sums()) all_reduce_sum(sum.whole(), world);
      // NEW: an expert has N / e replicas, and only these sum its gradients. Those of its own group's rows have come to
      // it with the rows.
      if (has_experts) all_reduce_sum(of_experts = expert_gradients.total(), replicas);
    }
    // Each rank has the loss of its own sequences, wherever their rows were computed.
    all_reduce_sum(loss, world);
    return update(step, loss, dense_gradients->total());
  }

  /// Loss of a micro-batch, summed over its tokens, without the auxiliary loss, which only its gradient shows. Rows
  /// travel between the ranks of a group, so all call it equally often.
  /// @param scratch, a  of the shape of the micro-batch.
  LossSum forward(const MicroBatch& batch, const Workspace& scratch, const Activations& a)
  {
    // The embedding: token plus position, (R, C) for the R = B T tokens of the micro-batch.
    model.embedding.lookup(scratch.output, weights.embedding, batch);
    model.embedding.add(a.stream(0), scratch.output, weights.embedding, batch);
    // Attention and MLP in turn, 2 L branches. Each adds its output to the residual stream.
    for (std::size_t i = 0; i < model.branches.size(); ++i) {
      const Branch& branch = model.branches[i];
      // The norm of this rank's rows: its parameters are dense, each rank has them.
      branch.normalise(a.branches[i], weights.branches[i]);
      // NEW: where the MLP is experts, other ranks compute a part of this rank's rows.
      if (branch.experts())
        forward_experts(i, batch, scratch.experts, scratch.output, a.branches[i]);
      else
        branch.apply(scratch.output, a.branches[i], weights.branches[i], batch);
      // The residual connection. A row that no expert has taken passes through as it is.
      branch.add(a.stream(i + 1), a.branches[i], scratch.output, weights.branches[i], batch);
      run.charge_forward(branch.unit());
    }
    // The head: logits, (R, V), and the cross-entropy of the next tokens.
    run.charge_forward(head_unit);
    return model.head.forward(a.head, weights.head, batch);
  }

  /// Adds the gradient of that loss and of the auxiliary loss to @p gradient, and to the sums of this rank's experts.
  void backward(const ModelTensors& gradient, const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    // Head: the gradient of the logits, then of the matrix and of the last norm. dx, (R, C), starts from zero.
    model.head.apply_backward(output, gradient.head, kept.head, weights.head, batch);
    run.stream->zero(dx);
    model.head.normalise_backward(dx, gradient.head, output, kept.head, weights.head, batch);
    run.charge_backward(head_unit);
    // The branches, last first. Each adds its contribution to dx, which becomes the gradient of its input.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      const Branch& branch = model.branches[i];
      const BranchTensors &p = weights.branches[i], &d = gradient.branches[i];
      if (branch.experts()) {
        // NEW: the gradients of outputs travel to the experts, and those of rows back. Each expert has a bias of its own, so
        // the residual add has none that needs a gradient.
        backward_experts(i, d.router, branch.output_backward(dx, output, batch), batch);
      } else {
        // The branch's parts in reverse order: residual add, matrices, norm.
        const Tensor doutput = branch.add_backward(d, dx, output, batch);
        branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      }
      // output now has the gradient of the normalised rows, (R, C), from here or from the experts. The norm adds to dx.
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
      run.charge_backward(branch.unit());
    }
    // The row of each token, and that of its position, get their gradients.
    model.embedding.backward(gradient.embedding, dx, batch);
  }

  /// Loss of the whole validation split. Rank r computes micro-batches r, r + N, r + 2 N, ...
  LossSum evaluate()
  {
    LossSum loss = run.validate(kept, {world.rank(), world.ranks()},
                                [&](const MicroBatch& b) { return forward(b, work, kept); });
    // Every rank has made as many forward passes, the last of them perhaps of padding, which counts nothing.
    all_reduce_sum(loss, world);
    return loss;
  }

  /// The next token of a text. All ranks compute the same sequence, which begins with the text's last T tokens; a causal
  /// model ignores the padding after them. The experts of each rank compute the rows of all.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    ActivationShape one = run.shape;
    one.B = 1;
    // Scratch and activations of one sequence are kept for the tokens to come.
    if (!text_work) text_kept.emplace(run.memory, run.config, one, text_work.emplace(run.memory, run.config, one));
    forward(run.load_text(*text_kept, text, 1, {0, one.T}), *text_work, *text_kept);
    // Of all T rows the next token needs the logits of the text's last one.
    const std::int64_t V = run.config.padded_vocabulary(), last = std::min(std::ssize(text), one.T) - 1;
    const Tensor logits = text_kept->head.logits.slice({last * V, V});
    return pick_token(read_logits(*run.stream, logits, run.config), run.options.sampling, number);
  }

 private:
  /// NEW: the output of branch @p i, which has experts, (R, C), from its normalised rows.
  void forward_experts(std::size_t i, const MicroBatch& batch, const Workspace::Experts& scratch,
                       const Tensor& output, const BranchActivations& a)
  {
    const BranchTensors& p = weights.branches[i];
    // The router: soft-max over E logits a token, of which the k most probable experts get its row.
    layer.route(scratch, a, p.router, batch);
    const RoutingPlan plan = layer.plan(a.routed, batch);
    // Counts first: no rank knows how many rows the others will send. Then the rows, sorted by expert: k R C elements less
    // those that stay here, or are beyond an expert's capacity.
    routed[i] = exchange.count(plan, a.routed, static_cast<std::int64_t>(i / 2), batch);
    layer.scatter(scratch.sent, a);
    exchange.to_experts(a.routed.received, scratch.sent, routed[i]);
    // Each expert is an MLP over the rows that arrived, of every rank of the group.
    layer.forward(scratch.output, a.routed, p.experts, routed[i].here);
    // The outputs go back to where the rows came from, and are added up, each with the weight of its choice.
    exchange.back(a.routed.returned, scratch.output, routed[i]);
    layer.combine(output, a.routed);
  }

  /// NEW: the same backwards. Leaves the gradient of the normalised rows, (R, C), in work.output.
  /// @param drouter  gradient of the router's matrix, (C, E), to which is added.
  /// @param doutput  gradient of the branch's output, (R, C); may be work.output.
  void backward_experts(std::size_t i, const Tensor& drouter, const Tensor& doutput, const MicroBatch& batch)
  {
    const BranchActivations& a = kept.branches[i];
    const BranchTensors& p = weights.branches[i];
    const Workspace::Experts& scratch = work.experts;
    // A choice's weight times doutput is the gradient of its expert's output; it travels where the row did.
    layer.combine_backward(scratch.sent, scratch, doutput, a.routed);
    exchange.to_experts(scratch.output, scratch.sent, routed[i]);
    // The MLP of each expert backwards, over the rows of one rank of the group after the other. In exact arithmetic each
    // rank's rows have a sum of their own.
    for (std::int64_t rank = 0; rank < group.ranks(); ++rank) {
      const auto d = expert_tensors(table, model.branches[i].unit(), expert_gradients.of(rank));
      layer.backward(scratch, d, a.routed, p.experts, routed[i].here, rank);
    }
    // The gradients of the rows come back, and meet those that the router's choice of weights gives.
    exchange.back(scratch.sent, scratch.output, routed[i]);
    layer.route_backward(work.output, drouter, scratch.sent, scratch, a, p.router, batch);
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const LossSum& loss, const Tensor& dense)
  {
    // NEW: the norm of all gradients: those of experts are summed over the ranks of a group, the dense ones count once.
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    auto squares = run.kernels->squared_norm(dense);
    if (has_experts) {
      auto of_group = run.kernels->squared_norm(of_experts);
      all_reduce_sum(of_group, group);
      squares += of_group;
    }
    // The mean is over the tokens of the whole global batch, whichever rank computed them.
    const double norm = std::sqrt(squares.value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    // One gradient for each range that the rank holds.
    std::vector<Tensor> gradients{dense};
    if (has_experts) gradients.push_back(of_experts);
    check_finite(run, step, loss.mean(), norm, adamw.shards(), gradients, world);
    // NEW: one update of the dense parameters, the same on all ranks, and of the experts, the same on their N / e replicas.
    adamw.step(run.kernels, gradients, learning_rate, clip_factor(norm, run.options.clip) / valid_tokens);
    return {loss.mean(), norm, learning_rate};
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = ExpertParallelOptions;
  static constexpr const char *name = "15_experts", *title = "Expert parallelism (mixture of experts)";

  Experts(Run& r, const Options& o) : run(r), options(o)
  {
    if (!has_experts) return;
    // An expert adds its own bias; the branch adds none.
    run.stream->zero(work.experts.no_bias);
    for (const Branch& branch : model.branches)
      if (branch.experts())
        weights.branches[static_cast<std::size_t>(branch.unit() - 1)].out_bias = work.experts.no_bias;
  }

  /// The dense parameters and this rank's experts, with their moments.
  HeldShards shards() { return {adamw.shards(), *run.stream}; }
  /// NEW: of the dense parameters, which all ranks of a group have, the first one counts them.
  HeldShards owned_shards()
  {
    const std::vector<Shard>& all = adamw.shards();
    return {table, {all.begin() + (group.rank() > 0 ? 1 : 0), all.end()}, *run.stream};
  }
  /// The e ranks of a group together hold a replica of the model.
  int replica() const { return replicas.rank(); }
  auto& optimizer() { return adamw; }
  void after_load() { adamw.round(run.kernels); }
  /// Dense parameters, which must be the same on all ranks; the frame compares them.
  Tensor replicated() const { return parameters.tensor().slice(stored[0]); }
  std::string describe() const
  {
    return fmt::format("{} ranks share the experts, {} of {} each; {} replicas; collectives by {}", group.ranks(),
                       options.experts_of(run.session).count, run.config.experts.count, replicas.ranks(),
                       describe_algorithm(world));
  }
  /// Loads of the experts, and the traffic that they caused.
  void report(Report& report) { exchange.report(report, run.sent["experts"]); }

 private:
  // ---- What this rank holds -----------------------------------------------------------------------------------------

  Run& run;                // options, device, data, ledgers
  const Options& options;  // as they were checked
  Mesh mesh{run.session, options.axes(run.session.ranks()), run.group_setup()};
  Group &world = mesh.world(), &replicas = mesh.group("replicas"), &group = mesh.group("experts");
  Range share = Partition(run.batch.global_batch, world.ranks()).shard(world.rank());  // sequences of this rank
  ParameterTable table = table_of(options, run.session);  // dense parameters, then this rank's experts
  bool has_experts = !table.experts().empty();
  std::vector<Range> stored = has_experts  // elements of both
                                  ? std::vector<Range>{{0, table.experts().first}, table.experts()}
                                  : std::vector<Range>{{0, table.elements()}};
  std::int64_t head_unit = unit_count(run.config) - 1;  // last unit
  Model model{{run.config, run.kernels, {}, run.options.dropout, run.options.seed, run.stream.get()}};
  ExpertLayer layer{model.context, group.ranks()};
  ExpertExchange exchange{group, *run.stream, model.context, run.shape};
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};
  ModelTensors weights = model_tensors(table, parameters.tensor());                 // views of the parameters
  std::unique_ptr<GradientSum> dense_gradients = run.arithmetic.make_gradient_sum(  // (D)
      run.kernels, *run.stream, world.often_reduced(), rankwise::dense_gradients(table, options.gradients));
  ExpertGradients expert_gradients{run.arithmetic,
                                   run.kernels,
                                   *run.stream,
                                   run.memory,
                                   rankwise::expert_gradients(table, options.gradients),
                                   {group.rank(), group.ranks()},
                                   share.count};
  Tensor of_experts;  // their sum over a step
  ShardedAdamW adamw{run.memory,       *run.stream, table, stored, slices(parameters.tensor(), stored),
                     run.options.adamw};                      // moments of both
  Workspace work{run.memory, run.config, run.shape};          // scratch of the forward and the backward pass
  Activations kept{run.memory, run.config, run.shape, work};  // activations of one micro-batch
  std::optional<Workspace> text_work;                         // the same for one sequence, of --sample
  std::optional<Activations> text_kept;
  std::vector<RoutedRows> routed{model.branches.size(), RoutedRows{{}, {}, ExpertRows({}, 1, 1)}};  // by branch
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::Experts>(argc, argv);
}
