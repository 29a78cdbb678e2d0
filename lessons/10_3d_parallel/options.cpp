#include "lessons/10_3d_parallel/options.hpp"

#include "lessons/10_3d_parallel/mesh_plan.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {

BatchShape MeshParallelOptions::batch(int N) const
{
  return TrainingOptions::batch(default_micro_batch(pipeline, share(N), static_cast<int>(layout(N).pp)));
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
  check_share(options.global_batch, static_cast<int>(layout.dp));
  check_algorithm(options.algorithm(), options.topology(N), axes_of(layout));
  TrainingOptions chosen = options;
  chosen.micro_batch = batch.micro_batch;
  check_options(chosen, layout);
  check_pipeline(options.pipeline, options.config(), static_cast<int>(layout.pp), options.share(N),
                 options.share(N) / chosen.micro_batch);
}

}  // namespace rankwise
