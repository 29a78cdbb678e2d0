#include "lessons/01_single_device/costs.hpp"

#include "common/cuda/devices.hpp"

namespace rankwise {

Costs costs(const SingleDeviceOptions& options, RankOf rank)
{
  const ModelConfig config = options.config();
  const ParameterTable table(config);
  const ActivationShape shape = options.activation_shape(rank);
  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = Arithmetic(options.arithmetic)
              .gradient_bytes(gradient_layout(table, options.gradients), options.global_batch / shape.B);
  bytes[Category::parameters] = bytes_of(options.precision) * table.elements();
  bytes[Category::optimizer] = adamw_bytes(table.elements(), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  costs.most = costs.kept;
  return costs;
}

std::string suggest_options(const SingleDeviceOptions& options, int N, std::int64_t bytes)
{
  const GradientLayout sums = gradient_layout(ParameterTable(options.config()), options.gradients);
  const CategoryBytes planned = in_tier(Tier::device, costs(options, {0, N}).most);
  return what_fits(options, options.global_batch, sums, planned, bytes);
}

}  // namespace rankwise
