#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/memory/memory_ledger.hpp"
#include "common/program/report.hpp"
#include "common/program/time_ledger.hpp"
#include "data/loader.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/reference_run.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// The parts of the report that concern the model and are the same in every lesson: rows, blocks, checks.

namespace rankwise {

/// Measurements of one optimizer step.
struct StepReport {
  double loss = 0;           ///< nats per token, mean over the global batch, before the update
  double gradient_norm = 0;  ///< norm of the mean gradient, before clipping
  double learning_rate = 0;  ///< learning rate of the update
  double seconds = 0;        ///< wall time
};

/// A validation loss and the number of steps after which it was measured.
struct Validation {
  std::int64_t step = 0;  ///< optimizer steps made
  double loss = 0;        ///< nats per token over the validation split
};

/// Measurements of a run, from its first step to its last.
struct RunRecord {
  std::int64_t first_step = 0;         ///< steps made by the run that this one resumes
  bool from_scratch = true;            ///< true if it began with initial parameters
  std::vector<StepReport> steps;       ///< in order
  std::vector<Validation> validation;  ///< in order
  std::string digest;                  ///< digest of the final parameters
};

/// Prints model, data and options as `#` lines, and enters layout, model and options in the document.
/// @param tokens  the data; in a dry run without its text.
void begin_report(Report& report, const Layout& layout, const OptionTable& table, const TrainingOptions& options,
                  const Tokens& tokens);

/// Opens the table of steps.
void begin_steps(Report& report, Architecture architecture);
/// Prints one row of the table of steps.
void report_step(Report& report, std::int64_t step, const StepReport& measured);

/// Prints a validation loss between two rows.
void report_validation(Report& report, const Validation& measured, Architecture architecture);

/// Enters the measurements of a run so far in the document: losses, norms, validation, digest.
void enter_record(Report& report, const RunRecord& record);

/// Block "loss": first and last loss beside ln V (with BERT ln V + ln 2) and the floor of the data, validation loss with its perplexity and
/// bits a byte of text (with GPT-2), digest. Checks that
/// the first loss is near ln V and that the loss falls, if the run began from scratch, and that the validation loss
/// is not below the floor.
void report_loss(Report& report, const RunRecord& record, const ModelConfig& config, const Tokens& tokens);

/// Block "deviation": how far the losses of the first steps and the parameters after them are from the reference
/// run. Checks the bounds, and enters `deviation` in the document. Fast arithmetic has to stay within 1e-6 (largest
/// relative deviation of a loss) and 1e-5 (norm of the difference of the parameters over their norm), exact
/// arithmetic has to give 0; both bounds are 2e-3 with TF32 and 1e-2 with bf16, because the reference run uses
/// neither. These bounds are claimed for ten steps of nano with default options; the longer two runs last, the
/// further they diverge.
/// @param parameters  deviation summed over all elements.
void report_deviation(Report& report, const RunRecord& record, const ReferenceRun& reference,
                      const ParameterDeviation& parameters, const TrainingOptions& options);

/// Mean seconds of a step; the first is left out as a warm-up when there are others.
double mean_step_s(const RunRecord& record);

/// Block "time": step time, tokens/s, TFLOP/s and the kinds of work; enters `time` in the document.
void report_time(Report& report, const RunRecord& record, const TimeLedger& time, const TrainingOptions& options);

/// Block "memory" of a dry run: the memory that the run would
/// need, by category, and its operations; allocates nothing.
void report_plan(Report& report, const CategoryBytes& planned, const TrainingOptions& options);

/// Ends a run whose loss or gradient is not finite.
/// @param first   index of the first element that is not finite, counted through all parameters of @p table and
///                then through all their gradients; empty when all are finite.
/// @throws Error  naming the step, the tensor and the element.
[[noreturn]] void end_not_finite(std::int64_t step, double loss, double gradient_norm, const ParameterTable& table,
                                 std::optional<std::int64_t> first);

/// Ends the run unless loss and gradient are finite.
/// @throws Error  naming the step and the first tensor of @p table whose parameter or gradient is not finite.
void check_finite(std::int64_t step, double loss, double gradient_norm, const Kernels& kernels,
                  const ParameterTable& table, const Tensor& gradients, const Tensor& parameters);

}  // namespace rankwise
