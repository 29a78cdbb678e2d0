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

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "gpt2/adamw.hpp"
#include "gpt2/generate.hpp"
#include "lessons/01_single_device/costs.hpp"
#include "lessons/frame/train.hpp"

namespace rankwise {

/// What the device holds, and a training step with it. The frame (lessons/frame/train.hpp) does the rest.
class SingleDevice {
 public:
  /// One optimizer step over the global batch.
  StepReport train_step(std::int64_t step)
  {
    // The batch is taken in G / B micro-batches: sums of losses and gradients are added up, means only divide them later.
    LossSum loss;
    gradients->clear();
    for (std::int64_t first = 0; first < run.batch.global_batch; first += run.batch.micro_batch) {
      const Range sequences{first, run.batch.micro_batch};
      const MicroBatch batch = run.load(kept, sequences, step);
      const GradientTensors d = gradients->begin(sequences);
      loss += forward(batch);
      backward(model_tensors(table, d.flat, d.tied), batch);
      gradients->end(sequences);
    }
    return update(step, loss, gradients->total());
  }

  /// Loss of a micro-batch, summed over its tokens; what the backward pass needs is kept.
  LossSum forward(const MicroBatch& batch)
  {
    // The residual stream begins as the embedding of tokens and positions; each branch reads it and adds to it.
    const EmbeddingTensors& embedding = weights.embedding;
    model.embedding.lookup(work.output, embedding, batch);
    model.embedding.add(kept.stream(0), work.output, embedding, batch);
    forward_branches(0, model.branches.size(), batch);
    // The head turns what has come out of the last branch into logits, and these into a loss.
    return model.head.forward(kept.head, weights.head, batch);
  }

  /// Adds the gradient of that loss with respect to all parameters to @p gradient.
  void backward(const ModelTensors& gradient, const MicroBatch& batch)
  {
    const Tensor &dx = work.dstream, &output = work.output;
    const HeadTensors &p_head = weights.head, &d_head = gradient.head;
    // The chain rule goes through the model from its end: first the head gives the gradient dx of the stream.
    model.head.apply_backward(output, d_head, kept.head, p_head, batch);
    run.stream->zero(dx);
    model.head.normalise_backward(dx, d_head, output, kept.head, p_head, batch);

    // Then each branch, last first, adds to dx what comes through it.
    for (std::size_t i = model.branches.size(); i-- > 0;) {
      // With recomputation only the inputs of blocks were kept: a block's forward pass is run again before it is needed.
      const bool last_of_block = i % 2 == 1;
      if (run.shape.recompute && last_of_block) forward_branches(i - 1, i + 1, batch);

      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      const BranchTensors& d = gradient.branches[i];
      const Tensor doutput = branch.add_backward(d, dx, output, batch);
      branch.apply_backward(output, d, doutput, work.wide, kept.branches[i], p, batch);
      branch.normalise_backward(dx, d, output, kept.branches[i], p, batch);
    }
    model.embedding.backward(gradient.embedding, dx, batch);
  }

  /// Loss of the whole validation split.
  LossSum evaluate()
  {
    return run.validate(kept, {}, [&](const MicroBatch& batch) { return forward(batch); });
  }

  /// The token that follows a text. Keys and values of the tokens before it are kept from call to call.
  Token next_token(std::span<const Token> text, std::int64_t number)
  {
    if (!generator) generator.emplace(run.memory, *run.stream, model, weights, run.batch.sequence);
    return pick_token(generator->next_logits(text), run.options.sampling, number);
  }

 private:
  /// Forward pass of branches [first, last): a branch normalises the stream, computes, and adds the result to the stream.
  void forward_branches(std::size_t first, std::size_t last, const MicroBatch& batch)
  {
    for (std::size_t i = first; i < last; ++i) {
      const Branch& branch = model.branches[i];
      const BranchTensors& p = weights.branches[i];
      branch.normalise(kept.branches[i], p);
      branch.apply(work.output, kept.branches[i], p, batch);
      branch.add(kept.stream(i + 1), kept.branches[i], work.output, p, batch);
    }
  }

  /// AdamW with the mean gradient, clipped to a norm of at most --clip.
  StepReport update(std::int64_t step, const LossSum& loss, const Tensor& gradient)
  {
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(run.kernels->squared_norm(gradient).value()) / valid_tokens;
    const double learning_rate = run.schedule.at(step);
    check_finite(step, loss.mean(), norm, *run.kernels, table, gradient, master);
    adamw.step(*run.kernels, parameters.tensor(), gradient, learning_rate,
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
  /// The model computes with the master weights, rounded.
  void after_load() { adamw.round(*run.kernels, parameters.tensor()); }
  std::string describe() const { return ""; }
  void report(Report& report) const
  {
    report.block("traffic", {{"sent", "0", "one device talks to nobody", "bytes"}});
  }

 private:
  // ---- What the device holds ----------------------------------------------------------------------------------------

  Run& run;                          // options, device, data, ledgers
  ParameterTable table{run.config};  // what stands where in the flat vectors
  Model model{{run.config, run.kernels.get(), {}, run.options.dropout, run.options.seed}};  // the chain
  Buffer parameters{run.memory, Category::parameters, run.shape.type, {table.elements()}, "parameters"};  // (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());           // views of them
  std::unique_ptr<GradientSum> gradients = run.arithmetic.make_gradient_sum(  // (P)
      *run.kernels, *run.stream, run.memory, gradient_layout(table, run.options.gradients));
  AdamW adamw{run.memory,     *run.stream,      table, {0, table.elements()},
              run.shape.type, run.options.adamw};     // (P) moments
  Tensor master = adamw.master(parameters.tensor());  // (P) f32: what is updated; in f32 the parameters themselves
  Workspace work{run.memory, run.config, run.shape};  // scratch of both passes
  Activations kept{run.memory, run.config, run.shape, work};  // from a forward pass to its backward pass
  std::optional<Generator> generator;                         // of a sample
};

}  // namespace rankwise

int main(int argc, char** argv)
{
  return rankwise::train<rankwise::SingleDevice>(argc, argv);
}
