#include "lessons/11_zero_bubble/costs.hpp"

#include <fmt/format.h>

#include "lessons/frame/plan.hpp"

namespace rankwise {

std::string suggest_options(const ZeroBubbleOptions& options, int N, std::int64_t bytes)
{
  ZeroBubbleOptions smaller = options;
  SmallerRun run = smaller_run(smaller, N, bytes);
  if (run.fits_with("--recompute=block", smaller.recompute_blocks, true) || fits_with_one_sequence(run, smaller))
    return run.enough();
  return run.least(fmt::format("with {} stages", N),
                   "Use lesson 09, which keeps less, start more ranks, or use a smaller model.");
}

}  // namespace rankwise
