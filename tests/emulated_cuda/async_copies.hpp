#pragma once

#include <cstddef>
#include <vector>

/// @file
/// Asynchronous copies to shared memory that a thread has started and not waited for.

namespace emulated_cuda {

/// One copy.
struct AsyncCopy {
  void* to;            ///< in shared memory
  const void* from;    ///< in memory of the device
  std::size_t bytes;   ///< that are read
  std::size_t zeros;   ///< behind them
  std::size_t groups;  ///< of the thread that had ended before it began
};

/// The copies of one thread that are still to be made, the oldest first.
struct AsyncCopies {
  std::vector<AsyncCopy> pending;  ///< not made yet
  std::size_t groups = 0;          ///< that have ended
};

/// Those of the thread that runs.
AsyncCopies& copies_of_thread();

}  // namespace emulated_cuda
