#pragma once

#include <cstdint>
#include <string>

#include "common/messages/communication.hpp"
#include "common/program/session.hpp"
#include "gpt2/training_options.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// The stages of the memory ladder: which one a run fits in.

namespace rankwise {

/// How much of the model state is sharded: each stage is a lesson.
enum class Stage : std::uint8_t {
  ddp,    ///< nothing: lesson 03
  zero1,  ///< moments and master weights: lesson 04
  zero2,  ///< gradients too: lesson 05
  zero3,  ///< parameters too: lesson 06
};

/// The bytes that a rank needs in a stage, with the options of a run in another; on the safe side by a few elements a unit,
/// which the ranks share out, and by the buffers of exact sums.
/// @param stage    of which it is asked; with ZeRO-3 blocks are gathered, one ahead.
/// @param options  as check_options() has passed them.
/// @param messages as check_options() has passed them.
/// @param bucket   bytes of gradients that are sent together, at least.
/// @param rank     that is asked about.
/// @param planned  bytes of that rank in the stage that the options are of.
/// @source  Rajbhandari et al. 2020 (ZeRO), figure 1.
std::int64_t stage_bytes(Stage stage, const TrainingOptions& options, const CommunicationOptions& messages,
                         std::int64_t bucket, RankOf rank, const CategoryBytes& planned);

/// What would make a run fit that has no room, as a paragraph: another micro-batch (suggest_options() of all lessons), and the
/// first stage behind this one.
/// @param stage  of the run; the others as for stage_bytes().
/// @param room   bytes that there are.
std::string suggest_options(Stage stage, const TrainingOptions& options, const CommunicationOptions& messages,
                            std::int64_t bucket, RankOf rank, const CategoryBytes& planned, std::int64_t capacity);

/// The same for rank 0 of N with these costs.
std::string suggest_stage(Stage stage, const LessonOptions& options, std::int64_t bucket, const Costs& costs, int N,
                          std::int64_t bytes);

}  // namespace rankwise
