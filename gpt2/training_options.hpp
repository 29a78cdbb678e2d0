#pragma once

#include <cstdint>
#include <string>

#include "common/program/options.hpp"
#include "data/loader.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/config.hpp"
#include "gpt2/sampling.hpp"

/// @file
/// The options that every lesson has, with the same names and meanings everywhere.

namespace rankwise {

/// What a training run is asked to do. Sizes of the model that are 0 stand for those of the preset.
struct TrainingOptions {
  std::string model = "nano";      ///< preset
  std::int64_t layers = 0;         ///< L
  std::int64_t heads = 0;          ///< H
  std::int64_t channels = 0;       ///< C
  std::int64_t context = 0;        ///< longest sequence
  std::int64_t vocabulary = 0;     ///< V
  std::string mask = "causal";     ///< causal, prefix:K or full
  std::string data;                ///< token file; empty for the embedded corpus
  std::int64_t steps = 0;          ///< optimizer steps; 0: as epochs says, or 100
  std::int64_t epochs = 0;         ///< passes over the training data; 0: as steps says
  std::int64_t global_batch = 16;  ///< G, sequences a step
  std::int64_t micro_batch = 0;    ///< B; 0 for the rank's share of G
  std::int64_t sequence = 0;       ///< T; 0 for the context
  std::uint32_t seed = 1;          ///< of initial values, data order, dropout and samples
  LearningRateSchedule schedule{.peak = 1e-3, .warmup = 10};  ///< learning rate
  AdamWOptions adamw{};                                       ///< constants of the optimizer
  double clip = 1;                                            ///< largest norm of the gradient; 0 for any
  double dropout = 0;                                         ///< rate
  DeviceKind device = DeviceKind::cpu;                        ///< where it runs
  DType precision = DType::f32;       ///< of parameters, activations and their messages: f32 or bf16
  DType gradients = DType::f32;       ///< of the gradients of parameters: f32, or bf16 in one pass a step
  bool tf32 = false;                  ///< whether f32 products may round their factors to TF32
  Sums arithmetic = Sums::fast;       ///< order of sums
  bool recompute_blocks = false;      ///< `--recompute=block`
  Bytes memory_limit{};               ///< of the device tier; 0 for none
  std::int64_t evaluate_every = 0;    ///< steps between evaluations; 0: only after the last step
  std::int64_t sample = 0;            ///< tokens to generate at the end
  SamplingOptions sampling{};         ///< how
  std::int64_t compare = 0;           ///< first steps to compare with the reference run; 0: none
  std::string checkpoint;             ///< file to save to and, with resume, to go on from; empty: none
  std::int64_t checkpoint_every = 0;  ///< steps between checkpoints; 0: only after the last step
  bool resume = false;                ///< go on from the checkpoint
  std::string initial;                ///< checkpoint whose parameters to start from; empty: none
  std::int64_t stop_after = 0;        ///< step after which to stop, short of the last one; 0: none
  std::string report;                 ///< JSON file
  std::string trace;                  ///< trace file
  bool dry_run = false;               ///< print what the run would need, and stop
  int threads = 1;                    ///< OpenMP threads of this rank

  /// The model that these options describe.
  /// @throws UserError for a preset that does not exist or sizes that cannot be.
  ModelConfig config() const;
  /// G, B and T, with what stands for "default" replaced.
  /// @param share  the sequences of the global batch that this rank computes; the default of B.
  BatchShape batch(std::int64_t share) const;
  /// How the loader deals out the data; with --mask=prefix:K what the prefix gives away is not counted.
  LoaderOptions loader_options() const;
  /// The learning rate over all steps: `--steps`, or as many as `--epochs` makes of @p loader, or 100.
  LearningRateSchedule schedule_over(const Loader& loader) const;
  /// The steps after which this run ends: all of them, or `--stop-after`.
  std::int64_t last_step(const Loader& loader) const;
  /// The shape of a micro-batch.
  /// @param share  as for batch().
  /// @param part   which part of divided layers is computed.
  ActivationShape activation_shape(std::int64_t share, Part part = {}) const;
};

/// Declares all of them.
void declare(OptionTable& table, TrainingOptions& options);

/// Refuses what no run can do: sizes that do not fit each other, rates out of range, arithmetic that the layout rules
/// out, for the run or for the one it is compared with. Sends no message and reads no file.
/// @param options  as parsed.
/// @param layout   degrees of the lesson's parallelisms.
/// @throws UserError for the first of them.
void check_options(const TrainingOptions& options, const Layout& layout);

/// What would make a run fit that has no room, as a sentence: the largest micro-batch, with recomputation if need be; or
/// what needs least, and how much.
/// @param options  as check_options() has passed them.
/// @param share    the sequences of the global batch that this rank computes.
/// @param sums     the gradients that it adds up over its passes.
/// @param planned  bytes of this rank with these options.
/// @param room     bytes that there are.
std::string suggest_options(const TrainingOptions& options, std::int64_t share, const GradientLayout& sums,
                            const CategoryBytes& planned, std::int64_t capacity);

/// Refuses what does not fit the data: more steps to compare than the run has, which --epochs tells only with the data at
/// hand; a sample from a model with tokens that the data's tokenizer has no text for.
/// @param options  as check_options() has passed them.
/// @param tokens   the data of the run, enough for a step.
/// @throws UserError with the number of steps, or the two vocabularies.
void check_fits_data(const TrainingOptions& options, const Tokens& tokens);

}  // namespace rankwise
