#include "tests/bench/allocation_count.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

// Sanitizers have a malloc of their own, which must stay.
#if defined(__SANITIZE_ADDRESS__)
#define RANKWISE_COUNTS_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RANKWISE_COUNTS_MALLOC 0
#endif
#endif
#ifndef RANKWISE_COUNTS_MALLOC
#ifdef __GLIBC__
#define RANKWISE_COUNTS_MALLOC 1
#else
#define RANKWISE_COUNTS_MALLOC 0
#endif
#endif

namespace {

std::atomic<std::int64_t> operator_new_calls{0};

void* new_memory(std::size_t bytes, std::size_t alignment)
{
  operator_new_calls.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The other forms call these; for arrays that has to be said, since sanitizers bring forms of their own.
void* operator new(std::size_t bytes)
{
  return new_memory(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment)
{
  return new_memory(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes)
{
  return operator new(bytes);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment)
{
  return operator new(bytes, alignment);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept
{
  operator_new_calls.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept
{
  std::free(memory);
}
void operator delete[](void* memory) noexcept
{
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept
{
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept
{
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept
{
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept
{
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept
{
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept
{
  std::free(memory);
}

#if RANKWISE_COUNTS_MALLOC

// The GNU C library lets a program have its own malloc, and offers its own under these names.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace {

std::atomic<std::int64_t> malloc_calls{0};

void count_malloc()
{
  malloc_calls.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

extern "C" {

void* malloc(std::size_t bytes)
{
  count_malloc();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes)
{
  count_malloc();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes)
{
  count_malloc();
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes)
{
  count_malloc();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes)
{
  return memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes)
{
  *memory = memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"

#endif

namespace rankwise {

AllocationCount allocations()
{
  AllocationCount count{.operator_new = operator_new_calls.load(std::memory_order_relaxed)};
#if RANKWISE_COUNTS_MALLOC
  count.malloc = malloc_calls.load(std::memory_order_relaxed);
#endif
  return count;
}

}  // namespace rankwise
