// Lesson 01: GPT-2 on a single device
//
// Builds on:    nothing
// New idea:     a GPT-2 is a chain of residual branches. A training step runs through it forwards, then backwards,
//               and ends with AdamW. A step may compute its batch in several micro-batches (gradient accumulation),
//               and may discard activations to compute them again (recomputation, or activation checkpointing).
// Memory:       16 P bytes of model state (f32: parameter 4, gradient 4, two moments 8); in bf16 2 + 4 + 12, or
//               2 + 2 + 12 with --gradients=bf16 (parameter, gradient, master weight and two moments). And the
//               activations of one micro-batch, of s = 4 or 2 bytes an element and R = B T rows:
//               s R (16 L C + 2 C + V) + 4 R (L (4 + H) + 7) bytes
// Traffic:      none: there is one device
// Paper:        Radford et al. 2019; Loshchilov and Hutter 2019 (AdamW); Chen et al. 2016 (recomputation);
//               Micikevicius et al. 2018 (master weights)
//
// Sample runs:  build/lessons/01_single_device --steps=5
//               build/lessons/01_single_device --steps=3 --arithmetic=exact --micro-batch=2 --dropout=0.1
//             * build/lessons/01_single_device --device=cuda --steps=20      (* needs a GPU)
// Expect:       a first loss of about ln 256 = 5.545, falling towards the entropy of the data; memory = formula.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "gpt2/adamw.hpp"
#include "gpt2/generate.hpp"
#include "lessons/01_single_device/costs.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// A training step on one device, and what the device holds. The frame does the rest (lessons/frame/train.hpp).
class SingleDevice {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // Gradient accumulation: the G sequences of the global batch are computed in G / B micro-batches of B each.
    // Loss and gradients stay sums over tokens: update() divides them once, by the number of valid tokens.
    LossSum loss;
    gradients->clear();
    for (std::int64_t first = 0; first < run.batch.global_batch; first += run.batch.micro_batch) {
      const Range sequences{first, run.batch.micro_batch};
      const MicroBatch batch = run.load(kept, sequences, step);  // inputs and targets: (R) tokens each, R = B T
      // The forward pass keeps its activations for the backward pass, which adds to the gradients, (P).
      const GradientTensors d = gradients->begin(sequences);
      loss += forward(batch);
      backward(model_tensors(table, d), batch);
      gradients->end(sequences);
    }
    // One optimizer update with the gradient of the whole global batch.
    return update(step, loss, gradients->total());
  }

  /// Loss of a micro-batch, summed over its tokens. Keeps the activations that the backward pass needs.
  LossSum forward(const MicroBatch& batch)
  {
    // Embedding: the residual stream begins as x = dropout(wte[token] + wpe[position]), (R, C).
    const EmbeddingTensors& embedding = weights.embedding;
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), work.output, embedding, batch);
    // Each of the L blocks is two branches: x = x + attention(norm(x)), then x = x + mlp(norm(x)).
    forward_branches(0, model.branches.size(), batch);
    // Head: logits = norm(x) wte', (R, V), with wte tied to the embedding's; then the cross-entropy of each target.
    return model.head.forward(kept.head, weights.head, batch);
  }

  /// Adds the gradient of that loss with respect to all parameters to @p gradient.
  void backward(const ModelTensors& gradient, const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors &p_head = weights.head, &d_head = gradient.head;
    // The chain rule starts at the loss. Cross-entropy: dlogits = soft-max(logits) - one-hot(target), (R, V), in
    // the memory of the logits; then dwte += dlogits' norm(x), and dlogits wte, (R, C), is the gradient of norm(x).
    model.head.apply_backward(output, d_head, kept.head, p_head, batch);
    // From here on dx, (R, C), is the gradient of the residual stream.
    run.stream->zero(dx);
    model.head.normalise_backward(dx, d_head, output, kept.head, p_head, batch);

    // Branches in reverse order. The residual connection passes dx on unchanged; each branch adds its contribution.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // Recomputation: only a block's input was kept, so its forward pass runs again before its backward pass.
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors& d = gradient.branches[i];
      // The three steps of the forward pass, last first. Dropout and bias: gradient of the output, (R, C).
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      // The two matrices, with attention or GELU between them: output becomes norm(x)'s gradient, (R, C).
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      // The norm adds its input's gradient to dx.
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
    }
    // The tied wte gets its second gradient: the row of each token += its row of dx. So does wpe, by position.
    model.embedding.backward(gradient.embedding, dx, batch);
  }

  /// Loss of the whole validation split.
  LossSum evaluate()
  {
    return run.validate(kept, {}, [&](const MicroBatch& batch) { return forward(batch); });
  }

  /// The next token of a text. Keys and values of earlier tokens are cached between calls.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run.memory, *run.stream, model, weights, run.batch.sequence);
    return pick_token(generator->next_logits(text), run.options.sampling, number);
  }

 private:
  /// Forward pass of branches [first, last).
  void forward_branches(std::size_t first, std::size_t last, const MicroBatch& batch)
  {
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      // Pre-norm: x + f(norm(x)), where f is attention over H heads, or an MLP with one hidden layer and GELU.
      branch.normalise(kept.branches[i], p);
      branch.apply(work.output, kept.branches[i], p, batch);
      branch.add(kept.stream(i + 1), kept.branches[i], work.output, p, batch);
    }
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const LossSum& loss, const Tensor& gradient)
  {
    // The gradient, (P), is still a sum over tokens: its norm is divided here, its elements by the factor below.
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(run.kernels->squared_norm(gradient).value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    // A loss or gradient that is not finite ends the run before it reaches the parameters.
    check_finite(step, loss.mean(), norm, run.kernels, table, gradient, master);
    // AdamW updates the moments, 8 P bytes, and the f32 weights, of which bf16 parameters are the rounded copy.
    adamw.step(run.kernels, parameters.tensor(), gradient, learning_rate,
               clip_factor(norm, run.options.clip) / valid_tokens);
    return {loss.mean(), norm, learning_rate};
  }

 public:
  // ---- What the frame asks for --------------------------------------------------------------------------------------

  using Options = SingleDeviceOptions;
  static constexpr const char *name = "01_single_device", *title = "GPT-2 on a single device";

  SingleDevice(Run& r, const Options&) : run(r) {}

  /// All parameters with their moments.
  HeldShards shards()
  {
    return {{{table, {0, table.elements()}, master, adamw.first_moments(), adamw.second_moments()}}, *run.stream};
  }
  auto& optimizer() { return adamw; }
  /// Parameters in bf16 are the rounded copy of the master weights.
  void after_load() { adamw.round(run.kernels, parameters.tensor()); }
  std::string describe() const { return ""; }
  void report(Report& report) const
  {
    report.block("traffic", {{"sent", "0", "one device sends no messages", "bytes"}});
  }

 private:
  // ---- What the device holds ----------------------------------------------------------------------------------------

  Run& run;                          // options, device, data, ledgers
  ParameterTable table{run.config};  // position of each tensor in the flat vectors, P elements
  Model model{{run.config, run.kernels, {}, run.options.dropout, run.options.seed}};  // the layers
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};  // (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());           // views of the parameters
  std::unique_ptr<GradientSum> gradients = run.arithmetic.make_gradient_sum(  // (P)
      run.kernels, *run.stream, run.memory, gradient_layout(table, run.options.gradients));
  AdamW adamw{run.memory,     *run.stream,      table, {0, table.elements()},
              run.shape.type, run.options.adamw};             // (P) moments
  Tensor master = adamw.master(parameters.tensor());          // (P) f32 weights; in f32 the parameters themselves
  Workspace work{run.memory, run.config, run.shape};          // scratch of the forward and the backward pass
  Activations kept{run.memory, run.config, run.shape, work};  // activations of one micro-batch
  std::optional<Generator> generator;                         // generates the text of --sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::SingleDevice>(argc, argv);
}
