#pragma once

#include <cstdint>
#include <string>

#include "common/memory/memory_ledger.hpp"

/// @file
/// Check that the host has enough memory for the offloaded state.

namespace rankwise {

/// Bytes of memory available to processes on this machine: free or reclaimable at once.
/// @source  MemAvailable of /proc/meminfo; the largest number where that does not exist.
std::int64_t available_bytes();

/// Refuses a run whose ranks need more memory of this machine than available_bytes().
/// @param planned   bytes of the host tier, by category.
/// @param device    bytes of the device tier that are memory of the host too; 0 with a GPU.
/// @param ranks     on this machine.
/// @param remedy    advice to the user, one sentence.
/// @throws UserError  with the table of categories.
void check_host_capacity(const CategoryBytes& planned, std::int64_t device, int ranks, const std::string& remedy);

}  // namespace rankwise
