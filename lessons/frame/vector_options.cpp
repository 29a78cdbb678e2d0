#include "lessons/frame/vector_options.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

void check_vectors(std::int64_t count, std::int64_t most, int root, int ranks, int repeats)
{
  if (count < 0 || count > most)
    throw UserError(fmt::format("--count={} is not a valid number of elements.", count),
                    fmt::format("Use 0 to {}.", group_digits(most)));
  if (root < 0 || root >= ranks)
    throw UserError(fmt::format("--root={}, but the {} ranks are 0 to {}.", root, ranks, ranks - 1),
                    "Choose one of them, or start more ranks with `mpirun -np`.");
  if (repeats < 1) throw UserError(fmt::format("--repeats={} measures nothing.", repeats), "Use 1 or more.");
}

}  // namespace rankwise
