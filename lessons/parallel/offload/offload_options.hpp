#pragma once

#include <concepts>
#include <memory>

#include "common/files/descriptor.hpp"
#include "lessons/parallel/offload/offload.hpp"
#include "lessons/parallel/zero/zero3_options.hpp"

/// @file
/// The options of offloading.

namespace rankwise {

/// Options of offloading: those of ZeRO-3, and the tier of each state.
struct ZeroOffloadOptions : Zero3Options {
  OffloadOptions offload;  ///< what leaves the device, and to which tier
  mutable std::shared_ptr<Descriptor>
      directory;  ///< set by prepare() if there is a disk; lives until the program ends
};

/// Declares them.
inline void declare(OptionTable& table, ZeroOffloadOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.gathering);
  declare(table, options.offload);
}
/// The same with the host in place of a disk: the messages do not change.
template <std::derived_from<ZeroOffloadOptions> Options>
Options without_files(Options options)
{
  options.offload.tier = "host";
  return options;
}
/// Refuses a tier that does not exist and gather options that are out of range.
inline void check_lesson(const ZeroOffloadOptions& options, int N)
{
  check_tier(options.offload);
  check_lesson(static_cast<const Zero3Options&>(options), N);
}

}  // namespace rankwise
