#pragma once

#include <cstdint>

/// @file
/// Check of the options of lessons without a model, which send vectors.

namespace rankwise {

/// Rejects vectors and ranks that no program of collectives can have.
/// @param count    elements of a vector, at most @p most.
/// @param root     a rank of the job,
/// @param ranks    which has this number of ranks.
/// @param repeats  timed calls.
/// @throws UserError  for the first that is out of range.
void check_vectors(std::int64_t count, std::int64_t most, int root, int ranks, int repeats);

}  // namespace rankwise
