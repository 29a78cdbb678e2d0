#include "common/device.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "common/text.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t alignment = 64;

#ifdef RANKWISE_POISON
constexpr bool poisoned = true;
#else
constexpr bool poisoned = false;
#endif

void poison(void* memory, std::int64_t bytes)
{
  if (poisoned) std::memset(memory, 0xFF, static_cast<std::size_t>(bytes));
}

class CpuStream final : public Stream {
 public:
  void zero(const Tensor& to) override
  {
    if (!to.empty()) std::memset(to.raw(), 0, static_cast<std::size_t>(to.bytes()));
  }

  void copy(const Tensor& to, const Tensor& from) override
  {
    check(to.type() == from.type() && to.elements() == from.elements(),
          "a copy between tensors of different type or size");
    if (!to.empty()) std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(to.bytes()));
  }

  void synchronise() override {}
};

class CpuDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }

  void* allocate(std::int64_t bytes) override
  {
    const std::int64_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, static_cast<std::size_t>(rounded > 0 ? rounded : alignment));
    if (memory == nullptr) throw Error(fmt::format("the host has no {} bytes of memory left", group_digits(bytes)));
    poison(memory, bytes);
    return memory;
  }

  void release(void* memory, std::int64_t bytes) noexcept override
  {
    poison(memory, bytes);
    std::free(memory);
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device()
{
  return std::make_unique<CpuDevice>();
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
  Buffer taken(std::move(other));  // and at the end of this function it takes what was here with it
  std::swap(memory_, taken.memory_);
  std::swap(category_, taken.category_);
  std::swap(tensor_, taken.tensor_);
  return *this;
}

}  // namespace rankwise
