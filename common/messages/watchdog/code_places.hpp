#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// @file
/// Names for addresses of the program's code.

namespace rankwise {

/// Where the code at @p address stands in the program's file, the same on all ranks; 0 for code of libraries, and where
/// the system does not say. The address may be one that a call returns to.
std::uint64_t place_in_program(const void* address);

/// The functions at these places of this process's program, as addr2line names them: "f (file.cpp:12)", without
/// the line where the build has no debug information; empty where nothing is known.
/// @cost  runs a command, some tenths of a second; 10 s at most.
std::vector<std::string> names_of_places(const std::vector<std::uint64_t>& places);

}  // namespace rankwise
