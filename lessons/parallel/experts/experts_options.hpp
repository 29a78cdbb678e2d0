#pragma once

#include <string>
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
/// Refuses a number of expert-parallel ranks that does not divide the ranks that may share the experts and the experts,
/// and recomputation of blocks with experts, whose rows would be sent a second time.
/// @param ep     as asked for; 0: the default.
/// @param ranks  that may share the experts.
/// @param named  these ranks as in a message, as "4 ranks".
/// @param whose  "ranks", or which of them.
/// @throws UserError  with the numbers that do.
void check_expert_ranks(const TrainingOptions& options, int ep, std::int64_t ranks, const std::string& named,
                        const std::string& whose);
/// Refuses what check_expert_ranks() refuses, and an algorithm that the ranks along an axis cannot run.
void check_lesson(const ExpertParallelOptions& options, int N);

}  // namespace rankwise
