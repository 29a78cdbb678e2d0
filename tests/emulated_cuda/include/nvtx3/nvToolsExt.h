#pragma once

#include <cstdint>

/// @file
/// The part of NVTX that Rankwise uses. With EMULATED_CUDA_NVTX=1 each call prints one line on standard error.

/// A range that may end in another thread.
using nvtxRangeId_t = std::uint64_t;

/// Begins a range inside of this thread's innermost one. @return  how many there were before.
int nvtxRangePushA(const char* name);
/// Ends this thread's innermost range. @return  how many are left, negative if there was none.
int nvtxRangePop();
/// Begins a range that nvtxRangeEnd ends.
nvtxRangeId_t nvtxRangeStartA(const char* name);
/// Ends a range.
void nvtxRangeEnd(nvtxRangeId_t range);
/// Marks a moment.
void nvtxMarkA(const char* name);
