#include "lessons/12_bert/costs.hpp"

#include "lessons/parallel/zero/ddp_costs.hpp"
#include "lessons/parallel/zero/zero1_costs.hpp"
#include "lessons/parallel/zero/zero3_costs.hpp"

namespace rankwise {

Costs costs(const BertOptions& options, RankOf rank)
{
  if (options.zero == 0) return costs(options_of<DdpOptions>(options), rank);
  if (options.zero == 1) return costs(options_of<Zero1Options>(options), rank);
  return costs(options_of<Zero3Options>(options), rank);
}

std::string suggest_options(const BertOptions& options, int N, std::int64_t bytes)
{
  const Stage stage = options.zero == 0 ? Stage::ddp : options.zero == 1 ? Stage::zero1 : Stage::zero3;
  return suggest_stage(stage, options, options.bucket.value, in_tier(Tier::device, costs(options, {0, N}).most), N,
                       bytes);
}

void report_plan(Report& report, const BertOptions& options, int N)
{
  if (options.zero == 3) report_plan(report, options_of<Zero3Options>(options), N);
}

}  // namespace rankwise
