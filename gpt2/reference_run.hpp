#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/exact_scalar.hpp"
#include "data/loader.hpp"
#include "gpt2/record/record.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// The reference run that every other run is compared with, and measures of the deviation from it.

namespace rankwise {

/// The record of a run that begins.
/// @param devices  on which it runs.
Record new_record(const TrainingOptions& options, int devices);

/// Results of a single device in exact arithmetic.
struct ReferenceRun {
  std::vector<double> losses;     ///< one for each step
  std::vector<float> parameters;  ///< after the last step; the flat vector of the table of all units, whole tensors
};

/// Trains the first `--compare` steps of a run on a single device, in exact arithmetic: the plain loop over
/// forward_backward(), with one sequence per micro-batch by default. The result depends neither on the layout of the run nor
/// on its `--arithmetic`, `--micro-batch`, `--recompute` and `--threads`.
///
/// Its memory is counted in a separate ledger without a limit, and is freed before the call returns. So the ledger
/// of the run under comparison does not change, and `--memory-limit` does not apply here.
/// @param options  options of the run, checked by check_options() and check_fits_data().
/// @param tokens   the data of the run.
/// @param micro_batch  sequences of a micro-batch, on which the result does not depend.
/// @param record   notes the results, if not null.
/// @cost           `--compare` steps of the exact kernels.
/// @throws Error   when a loss or a gradient is not finite.
ReferenceRun reference_run(const TrainingOptions& options, const Tokens& tokens, std::int64_t micro_batch = 1,
                           Record* record = nullptr);

/// The largest |loss - reference| / |reference| of any step.
/// @param losses, reference  losses of the same steps.
double loss_deviation(std::span<const double> losses, std::span<const double> reference);

/// Deviation of parameters from those of a reference run: two sums over elements. The sums over shards, added in
/// any order, give the sums over all elements.
struct ParameterDeviation {
  ExactScalar squared_difference;  ///< squared norm of the difference; zero only if no element differs
  ExactScalar squared_norm;        ///< squared norm of the reference

  /// The norm of the difference over the norm of the reference.
  double relative() const;
};

/// The sums over a run of elements, from @p parameters and the same elements of the @p reference.
ParameterDeviation parameter_deviation(std::span<const float> parameters, std::span<const float> reference);

}  // namespace rankwise
