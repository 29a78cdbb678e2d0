#pragma once

#include <string>

/// @file
/// Functions of libraries that are loaded when they are first called: NCCL and cuBLAS, which take a process 150 MiB and
/// 0.1 s even if it uses no GPU.

namespace rankwise {

/// The address of @p function in what is loaded; else @p library is loaded, and stays. For any thread.
/// @param library  its path.
/// @failure  Error if there is no such library, or it has no such function.
void* late_address(const std::string& library, const char* function);

}  // namespace rankwise

/// @p function, which its header declares and @p library has. Its address is looked up once for each place in the code.
#define RANKWISE_LATE(library, function)                                                                           \
  (*[] {                                                                                                           \
    static const auto address = reinterpret_cast<decltype(&function)>(rankwise::late_address(library, #function)); \
    return address;                                                                                                \
  }())
