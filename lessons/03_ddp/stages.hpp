#pragma once

#include <cstdint>
#include <string>

#include "common/messages/communication.hpp"
#include "common/program/session.hpp"
#include "gpt2/training_options.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// The ZeRO stages and the memory that each of them needs.

namespace rankwise {

/// The part of the model state that is sharded; each stage is a lesson.
enum class Stage : std::uint8_t {
  ddp,    ///< nothing: lesson 03
  zero1,  ///< moments and master weights: lesson 04
  zero2,  ///< gradients too: lesson 05
  zero3,  ///< parameters too: lesson 06
};

/// Upper bound on a rank's bytes if this run used another ZeRO stage. It exceeds the exact number by a few elements
/// per unit, because shards are rounded up, and by the buffers of exact sums.
/// @param stage    the other stage; ZeRO-3 gathers blocks, one ahead.
/// @param options  as check_options() has passed them.
/// @param messages as check_options() has passed them.
/// @param bucket   least number of bytes of a bucket of gradients.
/// @param rank     rank r of N.
/// @param planned  bytes of that rank in the stage of the run.
/// @source  Rajbhandari et al. 2020 (ZeRO), figure 1.
std::int64_t stage_bytes(Stage stage, const TrainingOptions& options, const CommunicationOptions& messages,
                         std::int64_t bucket, RankOf rank, const CategoryBytes& planned);

/// Options with which the run would fit in memory, as a paragraph: another micro-batch (suggest_options() of all
/// lessons), and the first later stage that fits.
/// @param stage     stage of the run; the other parameters as for stage_bytes().
/// @param capacity  bytes available.
std::string suggest_options(Stage stage, const TrainingOptions& options, const CommunicationOptions& messages,
                            std::int64_t bucket, RankOf rank, const CategoryBytes& planned, std::int64_t capacity);

/// As suggest_options(), for rank 0 of N with these costs.
std::string suggest_stage(Stage stage, const LessonOptions& options, std::int64_t bucket, const Costs& costs, int N,
                          std::int64_t bytes);

}  // namespace rankwise
