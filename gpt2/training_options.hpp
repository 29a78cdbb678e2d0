#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/program/options.hpp"
#include "data/loader.hpp"
#include "data/pair_loader.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/config.hpp"
#include "gpt2/sampling.hpp"

/// @file
/// The options that every lesson has, with the same names and meanings everywhere.

namespace rankwise {

/// Options of a training run. A size of the model that is 0 is taken from the preset.
struct TrainingOptions {
  Architecture architecture = Architecture::gpt2;  ///< model of the lesson; not an option
  std::string model = "nano";                      ///< preset
  std::int64_t layers = 0;                         ///< L
  std::int64_t heads = 0;                          ///< H
  std::int64_t channels = 0;                       ///< C
  std::int64_t context = 0;                        ///< longest sequence
  std::int64_t vocabulary = 0;                     ///< V
  ExpertConfig experts{};                          ///< experts of the MLP branches; options of lessons 15 and 16
  std::string mask = "causal";                     ///< causal, prefix:K or full
  std::string data;                                ///< token file; empty for the embedded corpus
  std::int64_t steps = 0;                          ///< optimizer steps; 0: given by epochs, or 100
  std::int64_t epochs = 0;                         ///< passes over the training data; 0: given by steps
  std::int64_t global_batch = 16;                  ///< G, sequences per step
  std::int64_t micro_batch = 0;                    ///< B; 0: all sequences of G that a rank computes
  std::int64_t sequence = 0;                       ///< T; 0 for the context
  std::uint32_t seed = 1;                          ///< seed of initial values, data order, dropout and samples
  LearningRateSchedule schedule{.peak = 1e-3, .warmup = 10};  ///< learning rate
  AdamWOptions adamw{};                                       ///< constants of the optimizer
  double clip = 1;                                            ///< largest norm of the gradient; 0: no clipping
  double dropout = 0;                                         ///< dropout rate
  DeviceKind device = DeviceKind::cpu;                        ///< device that the run computes on
  DType precision = DType::f32;       ///< type of parameters, activations and their messages: f32 or bf16
  DType gradients = DType::f32;       ///< type of parameter gradients: f32, or bf16 with one micro-batch per step
  bool tf32 = false;                  ///< true if f32 products may round their factors to TF32
  Sums arithmetic = Sums::fast;       ///< order of sums
  bool recompute_blocks = false;      ///< `--recompute=block`
  Bytes memory_limit{};               ///< memory budget of the device tier; 0: no limit
  std::int64_t evaluate_every = 0;    ///< steps between evaluations; 0: only after the last step
  std::int64_t sample = 0;            ///< tokens to generate at the end
  std::int64_t samples = 1;           ///< texts to generate
  std::string prompt;                 ///< text that they begin with; empty: a line end
  std::string prompt_file;            ///< file with that text; empty: none
  std::string stop;                   ///< text of the token that ends a sample; empty: none
  SamplingOptions sampling{};         ///< drawing of tokens
  std::int64_t compare = 0;           ///< number of first steps to compare with the reference run; 0: none
  std::string checkpoint;             ///< file to save to and, with resume, to resume from; empty: none
  std::int64_t checkpoint_every = 0;  ///< steps between checkpoints; 0: only after the last step
  bool resume = false;                ///< true resumes from the checkpoint
  std::string initial;                ///< checkpoint whose parameters to start from; empty: none
  std::string sizes_from;             ///< file that gave the sizes of the model; empty: the preset did
  std::string freeze;           ///< patterns of the tensors that are not trained, with commas between; empty: none
  std::int64_t stop_after = 0;  ///< step after which to stop before the last one; 0: none
  std::string report;           ///< JSON report to write
  std::string trace;            ///< trace to write
  std::string log;              ///< file to which each step adds a line of JSON
  std::string peak;             ///< peak rate of a rank for MFU and HFU, or "measured"; empty: neither
  std::string prompt_text;      ///< content of prompt_file, once it was read; not an option
  bool dry_run = false;         ///< true prints the needs of the run, and stops
  int threads = 1;              ///< OpenMP threads of this rank

  /// The model that these options describe.
  /// @throws UserError for an unknown preset or impossible sizes.
  ModelConfig config() const;
  /// G, B and T, with defaults filled in.
  /// @param share  number of sequences of the global batch that this rank computes; the default of B.
  BatchShape batch(std::int64_t share) const;
  /// batch() for @p replicas that divide the global batch; in exact arithmetic with cut_micro_batch().
  BatchShape cut_batch(std::int64_t replicas) const;
  /// Options of the loader. With --mask=prefix:K, targets that the prefix reveals are not counted.
  LoaderOptions loader_options() const;
  /// The data of `--data`, or the embedded corpus of the architecture.
  /// @throws UserError  as open_token_file() does.
  Tokens open_data() const;
  /// Number of sequences of an epoch: windows of the text, or with BERT pairs of neighbouring lines.
  std::int64_t sequences_of_epoch(const Tokens& tokens) const;
  /// The learning rate over all steps: `--steps`, or the number of steps in `--epochs`, or 100.
  /// @param epoch  sequences_of_epoch().
  LearningRateSchedule schedule_over(std::int64_t epoch) const;
  /// The number of steps after which this run ends: all of them, or `--stop-after`.
  std::int64_t last_step(std::int64_t epoch) const;
  /// Options of the loader of pairs.
  PairLoaderOptions pair_options() const;
  /// The shape of a micro-batch.
  /// @param share  as for batch().
  /// @param part   tensor-parallel shard that is computed.
  ActivationShape activation_shape(std::int64_t share, Part part = {}) const;
};

/// Declares all options in @p table.
void declare(OptionTable& table, TrainingOptions& options);

/// Refuses an option whose value is patterns of tensors, with commas between, when one of them matches none.
/// @param names  of all tensors.
/// @throws UserError  with the patterns, and names that are there.
void check_patterns(const std::string& option, const std::string& asked, const std::vector<std::string>& names);

/// Refuses numbers that no run can have, whatever its layout. Other checks compute with them, so this is the first.
/// @throws UserError for the first of them.
void check_ranges(const TrainingOptions& options);

/// Refuses options that no run can have: sizes that do not fit each other, rates out of range, or exact arithmetic
/// with a layout that rules it out, for the run or for its reference run. Sends no message and reads no file.
/// @param options  as parsed.
/// @param layout   degrees of the lesson's parallelisms.
/// @throws UserError for the first violation.
void check_options(const TrainingOptions& options, const Layout& layout);

/// Options with which the run would fit in memory, as a sentence: the largest micro-batch that fits, with
/// recomputation if necessary; if nothing fits, the options that need least memory, and how much that is.
/// @param options  checked by check_options().
/// @param share    number of sequences of the global batch that this rank computes.
/// @param sums     the gradients that it sums over its micro-batches.
/// @param planned  bytes that this rank needs with these options.
/// @param capacity  bytes that are available.
std::string suggest_options(const TrainingOptions& options, std::int64_t share, const GradientLayout& sums,
                            const CategoryBytes& planned, std::int64_t capacity);

/// Refuses data with too few sequences, or with tokens outside of the model's vocabulary.
/// @param options  checked by check_options().
/// @throws UserError  as check_enough_tokens(), check_enough_pairs() and check_vocabulary() do.
void check_enough_data(const TrainingOptions& options, const Tokens& tokens);

/// Refuses options that do not fit the data: more steps than the random numbers' keys can count, which with --epochs
/// depends on the data; sampling from a model whose vocabulary has tokens that the data's tokenizer cannot decode.
/// @param options  checked by check_options().
/// @param tokens   the data of the run, enough for one step.
/// @throws UserError with the number of steps, or the two vocabularies.
void check_fits_data(const TrainingOptions& options, const Tokens& tokens);

}  // namespace rankwise
