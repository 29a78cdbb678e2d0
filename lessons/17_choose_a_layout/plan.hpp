#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lessons/17_choose_a_layout/layout.hpp"
#include "lessons/17_choose_a_layout/machine.hpp"
#include "lessons/17_choose_a_layout/memory.hpp"
#include "lessons/17_choose_a_layout/time.hpp"

/// @file
/// Memory and time of a layout together, and the search for the fastest one that fits.

namespace rankwise {

/// A layout with its forecast.
struct Plan {
  PlannedLayout layout;  ///< how the run is divided
  StepTime time;         ///< a step's
  RankMemory memory;     ///< that of the rank that needs most
};

/// True if a rank fits into a GPU of this machine, and the ranks of a node into its host memory.
bool fits(const RankMemory& memory, const Machine& machine);

/// The fastest layouts that fit, the fastest first.
/// @param wishes  what of the layout is given.
/// @param most    number of layouts to return.
std::vector<Plan> fastest(const Job& job, const LayoutWishes& wishes, const Machine& machine, std::int64_t gpus,
                          std::size_t most);

/// True if some layout fits. Those that may need least are looked at first.
bool any_fits(const Job& job, const LayoutWishes& wishes, const Machine& machine, std::int64_t gpus);

/// The layout that needs least memory, if there is any.
std::optional<Plan> smallest(const Job& job, const LayoutWishes& wishes, const Machine& machine, std::int64_t gpus);

/// Why the first layout is faster than the second, in a sentence: the parts of the step that differ most.
std::string reason(const Plan& faster, const Plan& slower);

}  // namespace rankwise
