#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/exact_scalar.hpp"
#include "data/loader.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// The run that every other run is compared with, and how far from it one is.

namespace rankwise {

/// What a single device computes in exact arithmetic.
struct ReferenceRun {
  std::vector<double> losses;     ///< nats a token, one for each step
  std::vector<float> parameters;  ///< after the last step; the flat vector of the table of all units, whole tensors
};

/// Trains the first `--compare` steps of a run on a single device, in exact arithmetic: the plain loop over
/// forward_backward(), one sequence a pass. The result depends neither on the layout of the run nor on its
/// `--arithmetic`, `--micro-batch`, `--recompute` and `--threads`.
///
/// Its memory is counted by a ledger of its own that knows no limit, and is given back before the call returns. So what
/// is compared finds its own ledger untouched, and `--memory-limit` does not hold here.
/// @param options  of the run; check_options() and check_fits_data() have passed them.
/// @param text     what the run trains on.
/// @cost           as many steps of the reference kernels.
/// @throws Error   when a loss or a gradient is not finite.
ReferenceRun reference_run(const TrainingOptions& options, const std::shared_ptr<const TokenSource>& text);

/// The largest |loss - reference| / |reference| of a step.
/// @param losses, reference  of the same steps.
double loss_deviation(std::span<const double> losses, std::span<const double> reference);

/// How far parameters are from those of a reference run: two sums over elements. Those over shards add up to those over
/// all elements, in any order.
struct ParameterDeviation {
  ExactScalar squared_difference;  ///< zero only where no element differs
  ExactScalar squared_norm;        ///< of the reference

  /// The norm of the difference over the norm of the reference.
  double relative() const;
};

/// The sums over a run of elements, from @p parameters and the same elements of the @p reference.
ParameterDeviation parameter_deviation(std::span<const float> parameters, std::span<const float> reference);

}  // namespace rankwise
