#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/messages/rehearsal/rehearsal.hpp"
#include "common/program/report.hpp"
#include "common/program/session.hpp"
#include "gpt2/smaller_run.hpp"
#include "lessons/frame/costs.hpp"

/// @file
/// The needs of a run, from its sizes alone: the report of a dry run.

namespace rankwise {

/// Computes the costs of rank r of N.
using CostsOfRank = std::function<Costs(RankOf)>;

/// Device memory of the rank that needs most, of N ranks.
CategoryBytes largest_on_device(const CostsOfRank& costs, int N);
/// The same for the costs() of a lesson's options.
template <std::derived_from<LessonOptions> Options>
CategoryBytes largest_on_device(const Options& options, int N)
{
  return largest_on_device(CostsOfRank([&](RankOf rank) { return costs(options, rank); }), N);
}

/// The search for options with which each of N ranks fits into @p bytes of its device.
/// @param options  which the search changes; outlives it.
template <class Options>
SmallerRun smaller_run(const Options& options, int N, std::int64_t bytes)
{
  return {[&options, N] { return largest_on_device(options, N).total(); }, bytes};
}
/// SmallerRun::fits_with() --micro-batch=1, unless gradients are bf16, which are not summed over micro-batches.
bool fits_with_one_sequence(SmallerRun& run, LessonOptions& options);

/// Refuses `--link` and `--flops` with which @p steps would take longer than a virtual clock runs, by the costs
/// that need no messages: operations, and bytes sent at the faster of the links.
/// @throws UserError  if they would.
void check_virtual_time(const CommunicationOptions& options, std::int64_t steps, std::int64_t flops,
                        const Costs& costs);

/// Block "traffic" of a dry run: bytes that rank 0 would send.
void report_planned_traffic(Report& report, const Costs& costs);

/// Block "time" of a dry run with --link: the step of the slowest rank; enters `rehearsed` in the document, a list with an
/// entry for each rank.
/// @param scripts  a step of each rank.
void report_planned_time(Report& report, const CommunicationOptions& options,
                         const std::vector<StepScript>& scripts);

/// Seconds of the rank whose step takes longest.
double longest_step_s(const std::vector<VirtualStep>& steps);

/// Enters memory, traffic and arithmetic of every rank into the document, as `plan`: for each rank bytes kept and peak
/// bytes by tier and category, messages and bytes that it sends in a step by axis, and floating-point operations.
/// @param flops_of_rank  floating-point operations of rank r of N in a step.
void enter_plan(Report& report, const ModelConfig& config, const CostsOfRank& costs,
                const std::function<std::int64_t(RankOf)>& flops_of_rank, int N);

}  // namespace rankwise
