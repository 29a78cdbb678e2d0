#pragma once

#include <cstdint>

/// @file
/// How often a program asks for memory. A program that links allocation_count.cpp has its own `operator new`, and with
/// the GNU C library its own `malloc`; both count and then do what the library's would.

namespace rankwise {

/// Calls so far, on all threads.
struct AllocationCount {
  std::int64_t operator_new = 0;  ///< of `operator new`, in whatever form
  std::int64_t malloc = -1;  ///< of malloc, calloc, realloc and their kin, operator new's included; -1: not known

  /// The calls since @p earlier.
  AllocationCount operator-(const AllocationCount& earlier) const
  {
    return {operator_new - earlier.operator_new, malloc < 0 ? -1 : malloc - earlier.malloc};
  }
  /// The calls of two spans.
  AllocationCount& operator+=(const AllocationCount& other)
  {
    operator_new += other.operator_new;
    malloc = malloc < 0 || other.malloc < 0 ? -1 : malloc + other.malloc;
    return *this;
  }
};

/// The calls since the program began.
AllocationCount allocations();

}  // namespace rankwise
