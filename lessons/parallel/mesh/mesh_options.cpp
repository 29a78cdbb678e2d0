#include "lessons/parallel/mesh/mesh_options.hpp"

#include "lessons/frame/replicas.hpp"

namespace rankwise {

Division divide(const MeshParallelOptions& options, RankOf rank)
{
  Layout layout = options.mesh.layout(rank.ranks);
  layout.uneven = true;
  const MeshCoordinates place = place_of(layout, rank.rank);
  Division division = divide_batch(options, layout, place.dp, pipelined_batch(options, options.pipeline, layout));
  division.shape = divided(division.shape, options.mesh.split(rank.ranks), {place.tp, static_cast<int>(layout.tp)});
  division.shape.gradients = options.gradients;
  return division;
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
  const Division first = divide(options, {0, N});
  const Layout& layout = first.layout;
  check_split(options.mesh.split(N), options.config(), first.batch.sequence, static_cast<int>(layout.tp));
  check_share(options, layout);
  check_algorithm(options.algorithm(), options.topology(N), axes_of(layout));
  check_options(options, first);
  for (const Division& division : {first, divide(options, {N - 1, N})})  // the most and the fewest sequences
    check_pipeline(options.pipeline, options.config(), static_cast<int>(layout.pp), division.sequences.count,
                   division.micro_batches());
}

}  // namespace rankwise
