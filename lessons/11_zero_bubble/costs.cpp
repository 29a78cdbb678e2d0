#include "lessons/11_zero_bubble/costs.hpp"

#include <fmt/format.h>

#include "lessons/frame/plan.hpp"
#include "lessons/parallel/pipeline/pipeline_costs.hpp"
#include "lessons/parallel/pipeline/schedule_report.hpp"

namespace rankwise {

Costs costs(const ZeroBubbleOptions& options, RankOf rank)
{
  return costs(plan_of(options, rank.ranks), options, rank);
}

std::int64_t charged_flops(const ZeroBubbleOptions& options, RankOf rank)
{
  return plan_of(options, rank.ranks).flops_of(rank.rank);
}

std::string suggest_options(const ZeroBubbleOptions& options, int N, std::int64_t bytes)
{
  ZeroBubbleOptions smaller = options;
  SmallerRun run = smaller_run(smaller, N, bytes);
  if (run.fits_with("--recompute=block", smaller.recompute_blocks, true) || fits_with_one_sequence(run, smaller))
    return run.enough();
  return run.least(fmt::format("with {} stages", N),
                   "Use lesson 09, which keeps less, start more ranks, or use a smaller model.");
}

void report_plan(Report& report, const ZeroBubbleOptions& options, int N)
{
  report_plan(report, plan_of(options, N), parse_flops(options.messages.flops));
}

}  // namespace rankwise
