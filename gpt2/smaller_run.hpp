#pragma once

#include <cstdint>
#include <functional>
#include <string>

/// @file
/// Search for options with which a run fits in memory.

namespace rankwise {

/// Changes one option after the other until a run fits in the memory that is available.
///
///     SmallerRun run([&] { return memory_plan(options).total(); }, capacity);
///     if (run.fits_with("--recompute=block", options.recompute_blocks, true) || ...) return run.enough();
///     return run.least("on two ranks", "Use a smaller model.");
class SmallerRun {
 public:
  /// @param needs     returns the bytes that a run needs with the current options.
  /// @param capacity  bytes that are available.
  SmallerRun(std::function<std::int64_t()> needs, std::int64_t capacity);

  /// Sets an option, unless it has that value already.
  /// @param option  the option as the user would type it.
  /// @param value   its current value, from which the bytes are computed.
  /// @param other   a value that needs less memory.
  /// @return  true if the run fits now.
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
  std::string with_;  // options that were changed, as typed
};

}  // namespace rankwise
