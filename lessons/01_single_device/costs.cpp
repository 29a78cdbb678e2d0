#include "lessons/01_single_device/costs.hpp"

namespace rankwise {

Costs costs(const SingleDeviceOptions& options, RankOf rank)
{
  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = unsharded_bytes(options, divide(options, rank));
  costs.most = costs.kept;
  return costs;
}

std::string suggest_options(const SingleDeviceOptions& options, int N, std::int64_t bytes)
{
  const GradientLayout sums = gradient_layout(ParameterTable(options.config()), options.gradients);
  const CategoryBytes planned = in_tier(Tier::device, costs(options, {0, N}).most);
  return suggest_options(options, options.global_batch, sums, planned, bytes);
}

}  // namespace rankwise
