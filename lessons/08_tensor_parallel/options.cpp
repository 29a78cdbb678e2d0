#include "lessons/08_tensor_parallel/options.hpp"

namespace rankwise {

Division divide(const TensorParallelOptions& options, RankOf rank)
{
  const int t = options.split.parts(rank.ranks), dp = options.split.dp;
  Division division =
      divide_batch(options, {.dp = dp, .tp = t, .uneven = true}, rank.rank / t, options.cut_batch(dp));
  division.shape = divided(division.shape, options.split, {rank.rank % t, t});
  return division;
}

void declare(OptionTable& table, TensorParallelOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.split);
}

void check_lesson(const TensorParallelOptions& options, int N)
{
  check_split(options.split, options.config(), options.batch(1).sequence, N);
  check_algorithm(options.algorithm(), options.topology(N), options.axes(N));
}

}  // namespace rankwise
