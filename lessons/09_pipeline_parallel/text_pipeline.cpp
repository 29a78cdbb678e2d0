#include "lessons/09_pipeline_parallel/text_pipeline.hpp"

#include "common/collectives/collectives.hpp"

namespace rankwise {

void pass_through(const std::vector<PipelineStage>& stages, Group& line, const std::vector<GeneratingPass>& passes,
                  const std::function<void(const PipelineStage& stage, std::size_t place)>& compute)
{
  const int p = line.ranks();
  for (const PipelineStage& stage : stages) {
    const int rank = stage.number % p;
    const bool mine = rank == line.rank();
    const auto place = static_cast<std::size_t>(stage.number / p);
    if (mine) compute(stage, place);
    if (stage.last) continue;
    const std::size_t next = static_cast<std::size_t>((stage.number + 1) / p) % passes.size();
    broadcast(mine ? passes[place].rows_behind() : passes[next].rows(0), rank, line);
  }
}

}  // namespace rankwise
