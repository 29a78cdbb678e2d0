#pragma once

#include <string>

/// @file
/// Late binding: a library is loaded when one of its functions is first called. NCCL and cuBLAS cost a process 180 MiB
/// and 0.1 s, even if it uses no GPU.

namespace rankwise {

/// Looks up @p function in the loaded libraries, and loads @p library if none of them has it. Safe in any thread.
/// @param library  path or name, as dlopen() takes it.
/// @failure  Error if there is no such library, or it has no such function.
void* late_address(const std::string& library, const char* function);

}  // namespace rankwise

/// @p function of @p library, as its header declares it. Each call site looks up the address once.
#define RANKWISE_LATE(library, function)                                                                           \
  (*[] {                                                                                                           \
    static const auto address = reinterpret_cast<decltype(&function)>(rankwise::late_address(library, #function)); \
    return address;                                                                                                \
  }())
