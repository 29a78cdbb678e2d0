#include "lessons/08_tensor_parallel/options.hpp"

namespace rankwise {

void declare(OptionTable& table, TensorParallelOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.split);
}

void check_lesson(const TensorParallelOptions& options, int N)
{
  check_split(options.split, options.config(), options.TrainingOptions::batch(1).sequence, N);
  check_algorithm(options.algorithm(), options.topology(N), options.axes(N));
}

}  // namespace rankwise
