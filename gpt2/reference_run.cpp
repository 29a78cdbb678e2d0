#include "gpt2/reference_run.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "gpt2/bert/model.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/model.hpp"

namespace rankwise {

namespace {

/// A single device in exact arithmetic with a whole model.
struct ReferenceDevice {
  ReferenceDevice(const TrainingOptions& o, std::int64_t micro_batch)
      : options(o),
        config(o.config()),
        shape{.type = DType::f32, .B = micro_batch, .T = o.batch(o.global_batch).sequence},
        device(make_device(o.device)),
        stream(device->make_stream()),
        memory{device.get(), &ledger},
        kernels(Arithmetic(Sums::exact).make_kernels(memory, *stream)),
        table(config),
        context{config, kernels, {}, o.dropout, o.seed, stream.get()},
        flat(memory, Category::parameters, shape.type, {table.elements()}, "reference parameters"),
        gradients(make_tree_sum(kernels, *stream, memory, gradient_layout(table, shape.type))),
        adamw(memory, *stream, table, {0, table.elements()}, shape.type, o.adamw),
        work(memory, config, shape)
  {
    initialize_parameters(*stream, flat.tensor(), table, config, o.seed);
  }

  const TrainingOptions& options;
  ModelConfig config;
  ActivationShape shape;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  MemoryLedger ledger;
  DeviceMemory memory;
  Kernels kernels;
  ParameterTable table;
  ModelContext context;
  Buffer flat;
  std::unique_ptr<GradientSum> gradients;
  AdamW adamw;
  Workspace work;
  std::unique_ptr<Recorder> recorder;  // null: nothing is noted
};

/// One sequence of a GPT-2, forward and backward.
class Gpt2Sequence {
 public:
  Gpt2Sequence(ReferenceDevice& on, const Tokens& tokens)
      : on_(on), loader_(tokens.train, on.options.loader_options()), model_(on.context)
  {
  }

  using Loss = LossSum;
  static double divisor(const Loss& loss) { return static_cast<double>(loss.valid_tokens); }
  Loss train(std::int64_t step, Range sequence, const GradientTensors& d)
  {
    loader_.load(step, sequence, batch_);
    return forward_backward(model_, model_tensors(on_.table, on_.flat.tensor()), model_tensors(on_.table, d), kept_,
                            on_.work, *on_.stream, place(kept_, *on_.stream, batch_, sequence, step));
  }

 private:
  ReferenceDevice& on_;
  Loader loader_;
  Model model_;
  Activations kept_{on_.memory, on_.config, on_.shape, on_.work};
  Batch batch_;
};

/// One pair of a BERT, forward and backward.
class BertSequence {
 public:
  BertSequence(ReferenceDevice& on, const Tokens& tokens)
      : on_(on), loader_(tokens.train, *tokens.tokenizer, on.options.pair_options()), model_(on.context, *on.stream)
  {
  }

  using Loss = BertLoss;
  static double divisor(const Loss& loss) { return static_cast<double>(loss.tokens.valid_tokens); }
  Loss train(std::int64_t step, Range sequence, const GradientTensors& d)
  {
    loader_.load(step, sequence, batch_);
    PairMicroBatch pair = place(kept_, *on_.stream, batch_, sequence, step);
    pair.pair_weight =
        static_cast<double>(loader_.predicted_in(step)) / static_cast<double>(on_.options.global_batch);
    return forward_backward(model_, on_.table, on_.flat.tensor(), d.flat, d.tied, kept_, on_.work, pair);
  }

 private:
  ReferenceDevice& on_;
  PairLoader loader_;
  BertModel model_;
  BertActivations kept_{on_.memory, on_.config, on_.shape, on_.work};
  PairBatch batch_;
};

/// Notes the end of a step.
void note_step(const ReferenceDevice& on, double loss, double norm, double learning_rate)
{
  Recorder& notes = *on.recorder;
  const Range all{0, on.table.elements()};
  notes.number("loss", loss);
  notes.number("gradient norm", norm);
  notes.number("learning rate", learning_rate);
  notes.shard(StepPhase::update, State::first_moment, on.table, all, on.adamw.first_moments());
  notes.shard(StepPhase::update, State::second_moment, on.table, all, on.adamw.second_moments());
  notes.shard(StepPhase::update, State::parameter, on.table, all, on.flat.tensor());
}

/// The plain loop over steps and sequences.
template <class Sequence>
ReferenceRun train(ReferenceDevice& on, const Tokens& tokens)
{
  const TrainingOptions& options = on.options;
  const LearningRateSchedule schedule = options.schedule_over(options.sequences_of_epoch(tokens));
  Sequence one(on, tokens);
  ReferenceRun run;
  for (std::int64_t step = 0; step < options.compare; ++step) {
    typename Sequence::Loss loss;
    on.gradients->clear();
    if (on.recorder) on.recorder->begin_step(step);
    for (std::int64_t g = 0; g < options.global_batch; g += on.shape.B) {
      const Range sequence{g, on.shape.B};
      loss += one.train(step, sequence, on.gradients->begin(sequence));
      on.gradients->end(sequence);
    }
    const Tensor gradient = on.gradients->total();
    const double norm = std::sqrt(on.kernels->squared_norm(gradient).value()) / Sequence::divisor(loss);
    check(std::isfinite(loss.mean()) && std::isfinite(norm),
          fmt::format("--compare={}: step {} of the reference run has loss {} and gradient norm {}",
                      options.compare, step, loss.mean(), norm));
    if (on.recorder)
      on.recorder->shard(StepPhase::sums, State::parameter, on.table, {0, on.table.elements()}, gradient);
    on.adamw.step(on.kernels, on.flat.tensor(), gradient, schedule.at(step),
                  clip_factor(norm, options.clip) / Sequence::divisor(loss));
    if (on.recorder) note_step(on, loss.mean(), norm, schedule.at(step));
    run.losses.push_back(loss.mean());
  }
  run.parameters = to_host<float>(*on.stream, on.flat.tensor());
  return run;
}

}  // namespace

Record new_record(const TrainingOptions& options, int devices)
{
  const ModelConfig config = options.config();
  return {.devices = devices,
          .exact = Arithmetic(options.arithmetic).continues_tree(),
          .rounded = options.precision == DType::bf16,
          .global_batch = options.global_batch,
          .dropout = options.dropout,
          .names = record_names(config),
          .entries = {},
          .sizes = {config.channels, config.vocabulary, options.batch(options.global_batch).sequence}};
}

ReferenceRun reference_run(const TrainingOptions& options, const Tokens& tokens, std::int64_t micro_batch,
                           Record* record)
{
  ReferenceDevice on(options, micro_batch);
  if (record != nullptr) {
    *record = new_record(options, 1);
    record->exact = true, record->rounded = false;
    on.recorder = std::make_unique<Recorder>(*on.stream, on.config, options.global_batch, on.shape.T, true, 0, "");
    on.kernels->record_in(*on.recorder);
  }
  const ReferenceRun run = options.architecture == Architecture::bert ? train<BertSequence>(on, tokens)
                                                                      : train<Gpt2Sequence>(on, tokens);
  if (record != nullptr) record->entries = on.recorder->take_entries();
  return run;
}

double loss_deviation(std::span<const double> losses, std::span<const double> reference)
{
  check(losses.size() == reference.size(), "the losses to compare are not of the reference run's steps");
  double largest = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double relative = std::abs(losses[i] - reference[i]) / std::abs(reference[i]);
    if (relative > largest || std::isnan(relative)) largest = relative;  // NaN is kept
  }
  return largest;
}

double ParameterDeviation::relative() const
{
  return std::sqrt(squared_difference.value() / squared_norm.value());
}

ParameterDeviation parameter_deviation(std::span<const float> parameters, std::span<const float> reference)
{
  check(parameters.size() == reference.size(), "the parameters to compare are not the reference run's elements");
  constexpr double least = 0x1p-80;  // the unit of ExactScalar: a smaller square would count as no difference
  ParameterDeviation sums;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double expected = reference[i], difference = parameters[i] - expected;
    if (parameters[i] != reference[i]) sums.squared_difference.add(std::max(difference * difference, least));
    sums.squared_norm.add(expected * expected);
  }
  return sums;
}

}  // namespace rankwise
