#include "lessons/parallel/mesh/divided_layers.hpp"

namespace rankwise {

std::vector<RowGradients> make_row_gradients(const Run& run, const std::vector<LocalStage>& stages)
{
  std::vector<RowGradients> sums;
  for (const LocalStage& own : stages) {
    const ParameterTable table(run.config, run.shape.part, own.stage.units);
    sums.emplace_back(run.memory, *run.stream, table, run.shape, run.kernels);
  }
  return sums;
}

}  // namespace rankwise
