#include "lessons/frame/options.hpp"

#include <algorithm>

namespace rankwise {

Topology LessonOptions::topology(int N) const
{
  return topology_of_ranks(N, std::max(messages.ranks_per_node, 0), device);
}

void declare(OptionTable& table, LessonOptions& options)
{
  declare(table, static_cast<TrainingOptions&>(options));
  declare(table, options.messages);
  table.add("Messages", "check-every", options.check_every,
            "steps between comparisons of the parameters that ranks replicate; 0: only at the end");
  table.add("Run", "ranks", options.ranks,
            "with --dry-run: answer for so many ranks, whatever was started; 0: those");
}

}  // namespace rankwise
