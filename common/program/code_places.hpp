#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// @file
/// Function names and lines for code addresses of the program.

namespace rankwise {

/// Offset of @p address in the program's file, the same on all ranks; 0 for code of libraries, or if the system
/// does not provide it. Return addresses are accepted. After the first call it is safe in signal handlers.
std::uint64_t place_in_program(const void* address);

/// The functions at these offsets of this process's program, as addr2line names them: "f (file.cpp:12)", without
/// the line if the build has no debug information; empty if unknown.
/// @cost  runs a command for some tenths of a second, 10 s at most.
std::vector<std::string> names_of_places(const std::vector<std::uint64_t>& places);

}  // namespace rankwise
