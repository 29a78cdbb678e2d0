#include "common/memory/device.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include "common/base/text.hpp"
#include "common/cuda/devices.hpp"
#include "common/memory/block_pool.hpp"
#include "common/memory/element_sum.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t alignment = 64;
constexpr std::int64_t large_page = 2 << 20;  // bytes, on most processors

/// The next multiple of @p unit.
std::int64_t rounded_up(std::int64_t bytes, std::int64_t unit)
{
  return (bytes + unit - 1) / unit * unit;
}

void poison(void* memory, std::int64_t bytes)
{
  if (poisons_memory) std::memset(memory, 0xFF, static_cast<std::size_t>(bytes));
}

/// Calls @p work(first, bytes) for blocks of memory, divided among threads if it is large.
template <class Work>
void for_each_block(std::int64_t bytes, Work&& work)
{
  constexpr std::int64_t block = 1 << 20;
#pragma omp parallel for if (bytes > block)
  for (std::int64_t first = 0; first < bytes; first += block)
    work(first, static_cast<std::size_t>(std::min(block, bytes - first)));
}

/// Sets memory to zero with non-temporal stores, which bypass the caches: for memory that is not used again soon.
void zero_past_caches(std::byte* to, std::size_t bytes)
{
#ifdef __SSE2__
  constexpr std::size_t width = sizeof(__m128i);
  if (reinterpret_cast<std::uintptr_t>(to) % width == 0 && bytes % width == 0) {
    for (std::size_t i = 0; i < bytes; i += width)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_setzero_si128());
    _mm_sfence();
    return;
  }
#endif
  std::memset(to, 0, bytes);
}

class CpuStream final : public Stream {
 public:
  void zero(const Tensor& to) override
  {
    constexpr std::int64_t many = 32 << 20;  // bytes; more than a core's caches hold
    for_each_block(to.bytes(), [&](std::int64_t first, std::size_t bytes) {
      if (to.bytes() < many)
        std::memset(to.raw() + first, 0, bytes);
      else
        zero_past_caches(to.raw() + first, bytes);
    });
  }

  void copy(const Tensor& to, const Tensor& from) override
  {
    check(to.type() == from.type() && to.elements() == from.elements(),
          "a copy between tensors of different type or size");
    for_each_block(to.bytes(), [&](std::int64_t first, std::size_t bytes) {
      std::memcpy(to.raw() + first, from.raw() + first, bytes);
    });
  }

  void add(const Tensor& to, const Tensor& from) override
  {
    check(to.type() == from.type() && to.elements() == from.elements(),
          "a sum of tensors of different type or size");
    add_elements(to.type(), to.raw(), from.raw(), to.elements());
  }
};

/// Allocates memory, rounded up to a multiple of the alignment.
void* new_block(std::int64_t bytes, std::int64_t aligned_to)
{
  void* const memory = std::aligned_alloc(static_cast<std::size_t>(aligned_to), static_cast<std::size_t>(bytes));
  if (memory == nullptr)
    throw Error(fmt::format("the host is out of memory: cannot allocate {} bytes", group_digits(bytes)));
  return memory;
}

/// Allocates memory in large pages if the system supports them on request: this takes 512 times fewer TLB entries.
void* new_large_block(std::int64_t bytes)
{
  void* const memory = new_block(bytes, large_page);
#ifdef MADV_HUGEPAGE
  madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
#endif
  return memory;
}

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "cpu"; }

  void* allocate(std::int64_t bytes) override
  {
    void* const memory = bytes < large_page
                             ? new_block(rounded_up(std::max(bytes, alignment), alignment), alignment)
                             : large_.take(rounded_up(bytes, large_page));
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    poison(memory, bytes);
    return memory;
  }

  void release(void* memory, std::int64_t bytes) noexcept override
  {
    poison(memory, bytes);
    if (bytes < large_page) return std::free(memory);
    ASAN_POISON_MEMORY_REGION(memory, bytes);  // AddressSanitizer: any use from now on is an error
    large_.give_back(memory, rounded_up(bytes, large_page));
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }

 private:
  BlockPool large_{new_large_block,
                   std::free};  // blocks of a large page or more; malloc itself reuses smaller ones
};

}  // namespace

std::unique_ptr<Device> make_cpu_device()
{
  return std::make_unique<CpuDevice>();
}

std::unique_ptr<Device> make_device(DeviceKind kind)
{
  return kind == DeviceKind::cuda ? make_cuda_device() : make_cpu_device();
}

Arena::Arena(Device& device, std::int64_t bytes, std::int64_t pieces)
    : device_(device), bytes_(bytes + pieces * alignment), first_(static_cast<std::byte*>(device.allocate(bytes_)))
{
}

Arena::~Arena()
{
  device_.release(first_, bytes_);
}

void* Arena::allocate(std::int64_t bytes)
{
  const std::int64_t rounded = rounded_up(bytes, alignment);
  check(dealt_ + rounded <= bytes_, "an allocation exceeds the capacity of its arena");
  return first_ + std::exchange(dealt_, dealt_ + rounded);
}

Buffer::Buffer(const DeviceMemory& memory, Category category, DType type, const Shape& shape, std::string_view what)
    : memory_(memory), category_(category)
{
  const std::int64_t bytes = shape.elements() * bytes_of(type);
  memory_.ledger->enter(category, memory_.tier, bytes, what);
  try {
    tensor_ = Tensor(memory_.device->allocate(bytes), type, shape);
  } catch (...) {
    memory_.ledger->leave(category, memory_.tier, bytes);
    throw;
  }
}

Buffer::~Buffer()
{
  if (tensor_.empty()) return;
  memory_.ledger->leave(category_, memory_.tier, tensor_.bytes());
  memory_.device->release(tensor_.raw(), tensor_.bytes());
}

Buffer::Buffer(Buffer&& other) noexcept
    : memory_(other.memory_), category_(other.category_), tensor_(std::exchange(other.tensor_, Tensor()))
{
}

Buffer& Buffer::operator=(Buffer&& other) noexcept
{
  Buffer taken(std::move(other));  // its destructor frees the memory that was held here
  std::swap(memory_, taken.memory_);
  std::swap(category_, taken.category_);
  std::swap(tensor_, taken.tensor_);
  return *this;
}

}  // namespace rankwise
