#include "lessons/parallel/mesh/mesh_options.hpp"

#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/mesh/mesh_plan.hpp"

namespace rankwise {

BatchShape MeshParallelOptions::batch(int N) const
{
  BatchShape shape = cut_batch(layout(N).dp);
  if (micro_batch == 0)
    shape.micro_batch = default_micro_batch(pipeline, shape.micro_batch, static_cast<int>(layout(N).pp));
  return shape;
}

ActivationShape MeshParallelOptions::activation_shape(RankOf rank) const
{
  return plan_of(*this, rank).pipeline.shape;
}

void declare(OptionTable& table, MeshParallelOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.mesh);
  declare(table, options.pipeline);
}

void check_lesson(const MeshParallelOptions& options, int N)
{
  check_mesh_options(options.mesh, N);
  const Layout layout = options.layout(N);
  const BatchShape batch = options.batch(N);
  check_split(options.mesh.split(N), options.config(), batch.sequence, static_cast<int>(layout.tp));
  check_share(options, layout);
  check_algorithm(options.algorithm(), options.topology(N), axes_of(layout));
  TrainingOptions chosen = options;
  chosen.micro_batch = batch.micro_batch;
  check_options(chosen, layout);
  const auto dp = static_cast<int>(layout.dp);
  for (const int replica : {0, dp - 1}) {  // those with the most and the fewest sequences
    const std::int64_t sequences = options.sequences({replica, dp}).count;
    check_pipeline(options.pipeline, options.config(), static_cast<int>(layout.pp), sequences,
                   sequences / chosen.micro_batch);
  }
}

}  // namespace rankwise
