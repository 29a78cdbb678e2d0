#include "lessons/05_zero2/costs.hpp"

#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/sharded_memory.hpp"

namespace rankwise {

StepPlan step_plan(const Zero2Options& options)
{
  const ParameterTable table(options.config());
  return step_plan(options, table, make_buckets(table, options.gradients, options.bucket.value), true);
}

Costs costs(const Zero2Options& options, RankOf rank)
{
  return sharded_costs(options, divide(options, rank), step_plan(options), {}, rank,
                       "(N-1)/N of M times the gradients and of the parameters");
}

}  // namespace rankwise
