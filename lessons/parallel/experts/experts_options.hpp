#pragma once

#include <vector>

#include "common/messages/mesh.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// The options of expert parallelism.

namespace rankwise {

/// Options of lesson 15.
struct ExpertParallelOptions : LessonOptions {
  int ep = 0;  ///< e, ranks that share the experts; 0: as many as divide the ranks and the experts

  /// Four experts by default.
  ExpertParallelOptions() { experts.count = 4; }
  /// e of N ranks.
  int expert_ranks(int N) const;
  /// The N ranks as N / e replicas of e neighbours each, which share the experts.
  std::vector<Axis> axes(int N) const;
  /// Experts of each block that a rank stores.
  Range experts_of(RankOf rank) const;
};

/// N replicas, powers of two in exact arithmetic: the rows of an expert come from several ranks.
Division divide(const ExpertParallelOptions& options, RankOf rank);
/// Declares the experts of a model.
void declare(OptionTable& table, ExpertConfig& experts);
/// Declares the options of all lessons and those of experts.
void declare(OptionTable& table, ExpertParallelOptions& options);
/// Refuses recomputation of blocks with experts, whose rows would be sent a second time.
/// @throws UserError  if both are asked for.
void check_recomputation(const TrainingOptions& options);
/// Refuses a number of expert-parallel ranks that does not divide the ranks and the experts.
/// @throws UserError  with the numbers that do.
void check_lesson(const ExpertParallelOptions& options, int N);

}  // namespace rankwise
