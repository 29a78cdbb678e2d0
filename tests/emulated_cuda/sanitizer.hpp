#pragma once

#include <cstddef>

/// @file
/// Calls of AddressSanitizer's interface: memory that is out of bounds, and a switch to another stack.

#if defined(__SANITIZE_ADDRESS__)
#define EMULATED_CUDA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATED_CUDA_ASAN 1
#endif
#endif

#ifdef EMULATED_CUDA_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated_cuda {

#ifdef EMULATED_CUDA_ASAN

/// Whether AddressSanitizer is on.
constexpr bool under_address_sanitizer = true;

/// Marks bytes that must not be accessed.
inline void poison(const void* data, std::size_t bytes)
{
  __asan_poison_memory_region(data, bytes);
}
/// These bytes may be touched.
inline void unpoison(const void* data, std::size_t bytes)
{
  __asan_unpoison_memory_region(data, bytes);
}
/// The stack is about to become another one.
/// @param keep  keeps what belongs to the stack that is left; null when it is left for good.
inline void before_switch(void** keep, const void* bottom, std::size_t bytes)
{
  __sanitizer_start_switch_fiber(keep, bottom, bytes);
}
/// The stack has become another one.
/// @param kept  what before_switch() kept when this stack was left; null on a new one.
/// @param bottom, bytes  of the stack that was left.
inline void after_switch(void* kept, const void** bottom, std::size_t* bytes)
{
  __sanitizer_finish_switch_fiber(kept, bottom, bytes);
}

#else

constexpr bool under_address_sanitizer = false;

inline void poison(const void*, std::size_t) {}
inline void unpoison(const void*, std::size_t) {}
inline void before_switch(void**, const void*, std::size_t) {}
inline void after_switch(void*, const void**, std::size_t*) {}

#endif

}  // namespace emulated_cuda
