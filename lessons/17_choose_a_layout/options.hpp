#pragma once

#include <cstdint>
#include <string>

#include "common/program/options.hpp"
#include "common/program/session.hpp"
#include "lessons/17_choose_a_layout/calibration.hpp"
#include "lessons/17_choose_a_layout/layout.hpp"
#include "lessons/17_choose_a_layout/sizes.hpp"

/// @file
/// The options of the planner.

namespace rankwise {

/// The question.
enum class Question : std::uint8_t {
  layout,         ///< which layout is fastest, and what it needs
  largest_model,  ///< which is the largest model
  fewest_gpus,    ///< how many GPUs are enough
  days,           ///< how long a training run takes
  bandwidth,      ///< whether the network is enough
};

/// Type of parameters and activations.
enum class PlannedType : std::uint8_t { bf16, fp16, f32 };

/// All options of the program.
struct PlannerOptions {
  PlannedModel model;                    ///< sizes
  std::int64_t global_batch = 0;         ///< G; 0: one sequence for each GPU, 512 at least
  PlannedType type = PlannedType::bf16;  ///< type of parameters and activations
  System system = System::rankwise;      ///< whose program
  std::string machine;                   ///< file
  std::int64_t gpus = 8;                 ///< N
  LayoutWishes wishes;                   ///< what of the layout is given
  Question question = Question::layout;  ///< what is asked
  double tokens = 300e9;                 ///< number in a training run
  double days = 0;                       ///< within which it has to end; 0: any
  std::string calibrate;                 ///< file of measured rows; empty: none
  std::string check;                     ///< file of rows to compare with; empty: none
  std::int64_t rows = 10;                ///< number of rows to calibrate with
  RowOptions measured;                   ///< which rows are used
  std::string report;                    ///< JSON document to write

  /// The run that is planned.
  Job job(const Machine& machine) const;
};

/// Declares them.
void declare(OptionTable& table, PlannerOptions& options);
/// Refuses what cannot be planned, and a job of several ranks.
void check_options(const PlannerOptions& options, const OptionTable& table, const Session& session);

}  // namespace rankwise
