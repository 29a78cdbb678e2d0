#pragma once

#include <cstdint>
#include <functional>
#include <string>

/// @file
/// What would make a run fit that has no room.

namespace rankwise {

/// Changes one option after the other until a run needs no more memory than there is.
///
///     SmallerRun run([&] { return memory_plan(options).total(); }, room);
///     if (run.fits_with("--recompute=block", options.recompute_blocks, true) || ...) return run.enough();
///     return run.least("on two ranks", "Use a smaller model.");
class SmallerRun {
 public:
  /// @param needs  the bytes that a run needs with the options as they are.
  /// @param room   bytes that there are.
  SmallerRun(std::function<std::int64_t()> needs, std::int64_t capacity);

  /// Sets an option, unless it has that value already.
  /// @param option  as it would be typed.
  /// @param value   of it, which @p needs looks at.
  /// @param other   the value that needs less.
  /// @return  whether it made the run fit.
  template <class T>
  bool fits_with(const std::string& option, T& value, T other)
  {
    if (value == other) return false;
    value = other;
    return changed(option);
  }

  /// "1,000 bytes are enough with OPTIONS."
  std::string enough() const;
  /// "The least that works WHERE is 1,000 bytes, with OPTIONS. ADVICE"
  std::string least(const std::string& where, const std::string& advice) const;

 private:
  bool changed(const std::string& option);

  std::function<std::int64_t()> needs_;
  std::int64_t capacity_, bytes_;
  std::string with_;  // options that were changed
};

}  // namespace rankwise
