#pragma once

#include <cstddef>
#include <cstdint>

/// @file
/// Fibers: threads of execution with stacks of their own that hand the processor to each other.

namespace emulated_cuda {

/// A stack on which a function runs in pieces. Any host thread may resume it.
class Fiber {
 public:
  /// @param body  what it does. It never returns: it suspends, to be resumed or to be forgotten.
  explicit Fiber(void (*body)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Goes on with the fiber until it suspends. Not to be called within a fiber.
  void resume();
  /// Goes back to who resumed the fiber that calls this.
  static void suspend();

 private:
  struct Switches;

  std::byte* stack_;      // lowest address, of the guard page
  void* context_;         // where it goes on
  void* kept_ = nullptr;  // by AddressSanitizer
  void (*body_)();
};

}  // namespace emulated_cuda
