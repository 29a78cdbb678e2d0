#include "lessons/06_zero3/options.hpp"

namespace rankwise {

std::vector<Use> Zero3Options::uses(bool training) const
{
  const std::int64_t head = unit_count(config()) - 1;
  std::vector<Use> uses;
  for (std::int64_t u = 0; u < head; ++u) uses.push_back({u});
  uses.push_back({head, 0});  // the head's matrix is the token embedding
  for (std::int64_t u = head - 1; training && u > 0; --u) {
    if (recompute_blocks && u % 2 == 0) uses.insert(uses.end(), {{u - 1}, {u}});
    uses.push_back({u});
  }
  return uses;
}

void declare(OptionTable& table, Zero3Options& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.gathering);
}

void check_lesson(const Zero3Options& options, int)
{
  check_gathers(options.gathering, options.uses(true));
}

}  // namespace rankwise
