#include <string>
#include <utility>
#include <vector>

#include "common/program/placement.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "gpt2/training_options.hpp"

namespace rankwise {

namespace {

std::vector<std::pair<std::string, std::string>> model_choices(Architecture architecture)
{
  std::vector<std::pair<std::string, std::string>> choices;
  for (const std::string& name : preset_names(architecture)) choices.emplace_back(name, name);
  return choices;
}

void declare_model(OptionTable& table, TrainingOptions& o)
{
  const std::string group = "Model";
  table.add_choice(group, "model", o.model, model_choices(o.architecture), "preset of the sizes below");
  table.add(group, "layers", o.layers, "number of blocks; 0: as in the preset");
  table.add(group, "heads", o.heads, "attention heads, a divisor of the channels; 0: as in the preset");
  table.add(group, "channels", o.channels, "width of the residual stream; 0: as in the preset");
  table.add(group, "context", o.context, "longest sequence; 0: as in the preset");
  table.add(group, "vocabulary", o.vocabulary, "size of the vocabulary; 0: as in the preset");
  table.add(group, "mask", o.mask, "keys that a query attends to: causal, prefix:K or full");
  table.add(group, "dropout", o.dropout, "dropout rate on embedding, attention and residual, 0 <= rate < 1");
}

void declare_data(OptionTable& table, TrainingOptions& o)
{
  const std::string group = "Data";
  table.add_file(group, "data", o.data, FileUse::read,
                 "token file made by build/data/prepare; empty: the embedded text");
  table.add(group, "steps", o.steps, "optimizer steps; 0: given by --epochs, or 100");
  table.add(group, "epochs", o.epochs, "passes over the training data; 0: given by --steps");
  table.add(group, "global-batch", o.global_batch, "sequences per step, over all ranks");
  table.add(group, "micro-batch", o.micro_batch,
            "sequences per micro-batch; 0: all that a rank computes in a step");
  table.add(group, "sequence", o.sequence, "tokens per sequence; 0: the context");
  table.add(group, "seed", o.seed, "seed of initial values, data order, dropout and samples");
}

void declare_optimizer(OptionTable& table, TrainingOptions& o)
{
  const std::string group = "Optimizer";
  table.add(group, "learning-rate", o.schedule.peak, "learning rate at the end of warm-up");
  table.add(group, "min-learning-rate", o.schedule.least, "learning rate at the last step of the cosine schedule");
  table.add(group, "warmup", o.schedule.warmup, "steps of linear growth");
  table.add_choice<Decay>(group, "learning-rate-schedule", o.schedule.decay,
                          {{"constant", Decay::constant}, {"cosine", Decay::cosine}},
                          "learning rate after warm-up");
  table.add(group, "beta1", o.adamw.beta1, "decay of AdamW's first moment");
  table.add(group, "beta2", o.adamw.beta2, "decay of AdamW's second moment");
  table.add(group, "epsilon", o.adamw.epsilon, "added to the root of the second moment");
  table.add(group, "weight-decay", o.adamw.weight_decay, "decoupled decay of matrices");
  table.add(group, "clip", o.clip, "largest norm of the gradient; 0: no clipping");
  table.add(group, "freeze", o.freeze,
            "tensors that keep their values, by patterns as wte.weight,h.[0-3].*; empty: all are trained");
}

void declare_execution(OptionTable& table, TrainingOptions& o)
{
  const std::string group = "Execution";
  declare_device(table, o.device);
  table.add_choice<DType>(group, "precision", o.precision, {{"f32", DType::f32}, {"bf16", DType::bf16}},
                          "type of parameters and activations; with bf16 the optimizer updates f32 master weights");
  table.add_choice<DType>(group, "gradients", o.gradients, {{"f32", DType::f32}, {"bf16", DType::bf16}},
                          "type of parameter gradients; bf16 needs --precision=bf16 and one micro-batch per step");
  table.add(group, "tf32", o.tf32,
            "round the factors of f32 matrix products to TF32, on the tensor cores of a GPU");
  table.add_choice<Sums>(
      group, "arithmetic", o.arithmetic, {{"fast", Sums::fast}, {"exact", Sums::exact}, {"plain", Sums::plain}},
      "order of sums: the fastest, or one that gives the same bits on every layout; plain: the same by "
      "plain loops, slowly");
  table.add_choice<bool>(group, "recompute", o.recompute_blocks, {{"none", false}, {"block", true}},
                         "activations to recompute in the backward pass (activation checkpointing)");
  table.add(group, "memory-limit", o.memory_limit,
            "memory budget of the device per rank, such as 64MB; 0: no limit");
  table.add(group, "threads", o.threads, "threads of this rank");
  table.add(group, "dry-run", o.dry_run, "print the memory and the operations that the run would need, and stop");
}

void declare_checkpoints(OptionTable& table, TrainingOptions& o)
{
  const std::string group = "Checkpoints";
  table.add_file(group, "checkpoint", o.checkpoint, FileUse::replace,
                 "HDF5 file to save parameters, moments and step to; empty: none", checkpoint_seal);
  table.add(group, "checkpoint-every", o.checkpoint_every,
            "steps between checkpoints; 0: only after the last step");
  table.add(group, "resume", o.resume, "resume from --checkpoint and continue up to step --steps");
  table.add_file(
      group, "initial", o.initial, FileUse::read,
      "checkpoint whose parameters to start from (fine-tuning), and its sizes without --model; empty: none");
  table.add(group, "stop-after", o.stop_after,
            "step to stop after, to be continued with --resume; 0: the last step");
}

void declare_output(OptionTable& table, TrainingOptions& o)
{
  const std::string group = "Output";
  table.add(group, "evaluate-every", o.evaluate_every, "steps between validations; 0: only after the last step");
  table.add(group, "sample", o.sample, "tokens to generate at the end");
  table.add(group, "samples", o.samples, "texts to generate, of --sample tokens each");
  table.add(group, "prompt", o.prompt, "text that a sample continues; empty: a line end");
  table.add_file(group, "prompt-file", o.prompt_file, FileUse::read, "file with that text");
  table.add(group, "stop", o.stop, "end a sample after the token with this text");
  table.add(group, "temperature", o.sampling.temperature,
            "temperature of the sample; 0: always the most likely token");
  table.add(group, "top-k", o.sampling.top_k, "draw from the k most likely tokens; 0: from all");
  table.add(group, "top-p", o.sampling.top_p,
            "draw from the fewest tokens that have at least this probability together; 1: from all");
  table.add(group, "compare", o.compare,
            "steps to repeat on a single device in exact arithmetic, to print the deviation of this run");
  table.add_file(group, "report", o.report, FileUse::print, "JSON file for the report");
  table.add_file(group, "log", o.log, FileUse::print,
                 "file to which each step adds a line of JSON, for other programs to follow");
  table.add(group, "peak", o.peak,
            "peak rate of a rank, as 300TFLOP/s, or measured: its fastest matrix product; reports MFU and HFU");
  table.add_file(group, "trace", o.trace, FileUse::print,
                 "JSON file for the trace (chrome://tracing, ui.perfetto.dev)");
}

}  // namespace

void declare(OptionTable& table, TrainingOptions& options)
{
  declare_model(table, options);
  declare_data(table, options);
  declare_optimizer(table, options);
  declare_execution(table, options);
  declare_checkpoints(table, options);
  declare_output(table, options);
}

}  // namespace rankwise
