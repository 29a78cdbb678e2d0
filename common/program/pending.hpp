#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/source_location.hpp"

/// @file
/// Work on another thread that was started and must be waited for.

namespace rankwise {

/// Work under way. Destroying it without a wait ends the job, unless an exception destroys it.
class Pending {
 public:
  Pending() = default;  ///< nothing to wait for
  /// @param what     name of the work, for the message that it was never waited for.
  /// @param wait     returns when it is done; gets the line that waits.
  /// @param abandon  called instead of @p wait if an exception destroys this.
  /// @param where    line where it was started.
  Pending(std::string what, std::function<void(SourceLocation)> wait, std::function<void()> abandon,
          SourceLocation where);
  ~Pending();
  Pending(Pending&& other) noexcept = default;   ///< leaves @p other with nothing to wait for
  Pending& operator=(Pending&& other) noexcept;  ///< as above; this object must have nothing to wait for

  /// Returns when the work is done and its result can be used; further calls do nothing.
  /// @throws  what the work's queue throws.
  void wait(SourceLocation where = SourceLocation::current());

 private:
  /// The work, from its start until it was waited for.
  struct Started {
    std::string what;
    std::function<void(SourceLocation)> wait;
    std::function<void()> abandon;
    SourceLocation where;
    int exceptions;  // in flight at construction
  };
  std::unique_ptr<Started> started_;
};

}  // namespace rankwise
