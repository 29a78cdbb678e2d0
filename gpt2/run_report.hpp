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
/// What every lesson prints and writes in the same way of its model: rows, blocks, checks.

namespace rankwise {

/// What one optimizer step reports.
struct StepReport {
  double loss = 0;           ///< nats a token, mean over the global batch, before the update
  double gradient_norm = 0;  ///< of the mean loss, before clipping
  double learning_rate = 0;  ///< of the update
  double seconds = 0;        ///< wall time
};

/// A validation loss and the number of steps after which it was measured.
struct Validation {
  std::int64_t step = 0;  ///< optimizer steps made
  double loss = 0;        ///< nats a token over the validation split
};

/// What a run has measured, from its first step to its last.
struct RunRecord {
  std::int64_t first_step = 0;         ///< steps that were made before, by the run that this one goes on with
  bool from_scratch = true;            ///< whether it began with initial parameters
  std::vector<StepReport> steps;       ///< in order
  std::vector<Validation> validation;  ///< in order
  std::string digest;                  ///< of the final parameters
};

/// Prints model, data and options as `#` lines, and enters layout, model and options in the document.
/// @param tokens  without a text in a dry run.
void begin_report(Report& report, const Layout& layout, const OptionTable& table, const TrainingOptions& options,
                  const Tokens& tokens);

/// Opens the table of steps.
void begin_steps(Report& report);
/// Prints one row of the table of steps.
void report_step(Report& report, std::int64_t step, const StepReport& measured);

/// Prints a validation loss between two rows.
void report_validation(Report& report, const Validation& measured);

/// Enters what a run has measured so far in the document: losses, norms, validation, digest.
void enter_record(Report& report, const RunRecord& record);

/// Block "loss": first and last loss beside ln V and the floor of the data, validation, digest; with their checks: the
/// first loss is near ln V and the loss falls, if the run began from scratch; the validation loss is not below the floor.
void report_loss(Report& report, const RunRecord& record, const ModelConfig& config, const Tokens& tokens);

/// Block "deviation": how far the losses of the first steps and the parameters after them are from the reference run;
/// with their checks, and enters `deviation` in the document. Fast arithmetic has to stay within 1e-6 (relative, the
/// largest of the steps) and 1e-5 (of the norm of the whole vector), exact arithmetic at 0; both bounds are 2e-3 with TF32
/// and 1e-2 with bf16, of which the reference run knows nothing. These bounds are claimed for ten steps of nano with default options; the longer two runs last, the further they part.
/// @param parameters  summed over all elements.
void report_deviation(Report& report, const RunRecord& record, const ReferenceRun& reference,
                      const ParameterDeviation& parameters, const TrainingOptions& options);

/// Block "time": step time, tokens/s, TFLOP/s and the kinds of work; enters `time` in the document. The first step,
/// which warms caches up, is left out when there are others.
void report_time(Report& report, const RunRecord& record, const TimeLedger& time, const TrainingOptions& options);

/// Block "memory" of a dry run: what the run would need by category, and its operations, with nothing allocated.
void report_plan(Report& report, const CategoryBytes& planned, const TrainingOptions& options);

/// Ends a run whose loss or gradient is not finite.
/// @param first   the first element that is not, counted through all parameters of @p table and then through all their
///                gradients; nothing where all are finite.
/// @throws Error  naming the step, the tensor and the element.
[[noreturn]] void end_not_finite(std::int64_t step, double loss, double gradient_norm, const ParameterTable& table,
                                 std::optional<std::int64_t> first);

/// Ends the run unless loss and gradient are finite.
/// @throws Error  naming the step and the first tensor of @p table whose gradient or else parameter is not finite.
void check_finite(std::int64_t step, double loss, double gradient_norm, const Kernels& kernels,
                  const ParameterTable& table, const Tensor& gradients, const Tensor& parameters);

}  // namespace rankwise
