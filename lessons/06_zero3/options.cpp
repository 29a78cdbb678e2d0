#include "lessons/06_zero3/options.hpp"

namespace rankwise {

void declare(OptionTable& table, Zero3Options& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.gathering);
}

void check_lesson(const Zero3Options& options, int)
{
  check_gathers(options.gathering, uses_of(options, true));
}

}  // namespace rankwise
