#pragma once

#include <cstddef>

/// @file
/// Copies from a device's memory to a block's shared memory that arrive later (cp.async). When a copy is made is drawn: at
/// once, or only when its thread waits for it.

/// Begins a copy of @p bytes (4, 8 or 16) of which the last @p zeros become zero and are not read.
void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros = 0);
/// Ends a group: the copies since the last one.
void __pipeline_commit();
/// Waits for all groups of this thread but the last @p groups.
void __pipeline_wait_prior(std::size_t groups);
