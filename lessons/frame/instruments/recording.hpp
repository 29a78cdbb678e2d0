#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpt2/record/recorder.hpp"
#include "lessons/frame/progress.hpp"

/// @file
/// `--record` and `--check-against`: the results of all ranks, number by number.

namespace rankwise {

/// Refuses options that a record cannot have.
/// @throws UserError  for the first of them.
void check_recording(const LessonOptions& options);

/// Notes the gradients that a step's update is made with.
/// @param held       shards of this rank.
/// @param gradients  gradients of each shard, in order.
void record_sums(Run& run, const HeldShards& held, const std::vector<Tensor>& gradients);
/// Notes the results of a step, gathers the notes of all ranks on rank 0, and adds them to the file. All ranks make
/// this call.
void record_step(Run& run, const StepReport& measured, const HeldShards& held);
/// Rank 0 says on stderr that the file has the steps before an error, if it has any.
void tell_recorded(const Run& run);
/// Compares the record with that of the reference run if that was asked for. All ranks make this call.
void report_recording(Report& report, Run& run);

}  // namespace rankwise
