#pragma once

#include <cstdint>
#include <string>

#include "common/memory/memory_ledger.hpp"

/// @file
/// Whether the host has room for what is offloaded.

namespace rankwise {

/// Bytes of memory that this machine could still give to processes: what is free and what it could free at once.
/// @source  MemAvailable of /proc/meminfo; the largest number where nobody says.
std::int64_t available_bytes();

/// Refuses a run whose ranks need more memory of this machine than available_bytes().
/// @param planned   bytes of the host tier, by category.
/// @param device    bytes of the device tier that are memory of the host too; 0 with a GPU.
/// @param ranks     of this machine.
/// @param remedy    what the user can do about it, one sentence.
/// @throws UserError  with the table of categories.
void check_host_capacity(const CategoryBytes& planned, std::int64_t device, int ranks, const std::string& remedy);

}  // namespace rankwise
