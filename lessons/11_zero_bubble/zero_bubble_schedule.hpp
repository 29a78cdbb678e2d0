#pragma once

#include "lessons/parallel/pipeline/pipeline_schedule.hpp"

/// @file
/// The schedule of lesson 11: ZB-H1.

namespace rankwise {

/// ZB-H1: 1F1B with backward passes split into B and W. Rank r defers each W by r micro-batches, so that W fills the
/// time in which 1F1B is idle, and no rank keeps more than the first rank of 1F1B: p in flight. A rank is idle for
/// (p-1)(F+B-W) of a step if W takes no longer than F and than B.
///
///     rank 0 |012..aAbBcC|     p = 3, m = 3
///     rank 1 |.01.a2bAcBC|     digits: F, small letters: B, capitals: W, dots: idle
///     rank 2 |..0a1b2cABC|
///
/// @param micro_batches  m, at least @p ranks.
/// @source  Qi et al. 2024 (Zero Bubble Pipeline Parallelism), section 2.1.
PipelineSchedule zero_bubble(int ranks, int micro_batches);

}  // namespace rankwise
