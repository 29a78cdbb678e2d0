#pragma once

#include <cstddef>
#include <cstdint>

/// @file
/// Fibers: threads of execution with stacks of their own that hand the processor to each other.

namespace emulated_cuda {

/// A function that runs in pieces on its own stack. Any host thread may resume it.
class Fiber {
 public:
  /// @param body  the function. It never returns: it suspends, and is either resumed or destroyed.
  explicit Fiber(void (*body)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Continues the fiber until it suspends. Not to be called within a fiber.
  void resume();
  /// Suspends the running fiber and returns from the resume() that continued it.
  static void suspend();

 private:
  struct Switches;

  std::byte* stack_;      // lowest address, of the guard page
  void* context_;         // where it continues
  void* kept_ = nullptr;  // by AddressSanitizer
  void (*body_)();
};

}  // namespace emulated_cuda
