#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/memory/memory_ledger.hpp"
#include "common/memory/tensor.hpp"

/// @file
/// A device: memory, and streams of work on it. Everything above is written once for all devices.

namespace rankwise {

/// `--device`: the kinds of devices that there are.
enum class DeviceKind : std::uint8_t {
  cpu,   ///< the host's processor
  cuda,  ///< a GPU
};

/// A point in the work of a stream: reached when all that was given to the stream before it is done. Copies stand for the
/// same point. One without a handle is reached already.
class Event {
 public:
  Event() = default;  ///< reached
  /// @param handle  what the stream's device knows the point by.
  explicit Event(std::shared_ptr<void> handle) : handle_(std::move(handle)) {}
  /// What the device knows it by; null when it is reached anyway.
  void* handle() const { return handle_.get(); }

 private:
  std::shared_ptr<void> handle_;
};

/// A queue of work on one device: pieces run in the order in which they were given. The CPU's stream runs each piece
/// before the call returns; another device's may run it later, until synchronise(). Streams of one device run beside each
/// other: what one of them needs of another waits for an Event.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Sets all elements of @p to to zero.
  virtual void zero(const Tensor& to) = 0;
  /// Copies as many elements of the same type as @p to has; either side may lie on the host or on the device.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;
  /// to += from, element by element; as many elements of the same type, u8 excepted. bf16 is added in f32 and rounded.
  virtual void add(const Tensor& to, const Tensor& from) = 0;
  /// Returns when all work given so far is done.
  virtual void synchronise() = 0;
  /// The point behind the work given so far.
  virtual Event record() = 0;
  /// Work given from here on begins when @p event, of a stream of the same device, is reached. The caller does not wait.
  virtual void wait(const Event& event) = 0;
};

/// The elements of @p from on the host, when all work of @p stream is done. Error unless they are of type T.
template <class T>
std::vector<T> to_host(Stream& stream, const Tensor& from)
{
  std::vector<T> elements(static_cast<std::size_t>(from.elements()));
  stream.copy(Tensor(elements.data(), dtype_of<T>(), {from.elements()}), from);
  stream.synchronise();
  return elements;
}

/// Memory and streams of one device.
class Device {
 public:
  virtual ~Device() = default;
  /// Which kind it is.
  virtual DeviceKind kind() const = 0;
  /// As printed in a report: "cpu", or what the maker calls it.
  virtual std::string name() const = 0;
  /// New memory, aligned to 64 bytes, of undefined content (all ones, a NaN in every float type, in debug builds).
  /// @throws Error when there is none.
  virtual void* allocate(std::int64_t bytes) = 0;
  /// Gives memory back that allocate() returned.
  /// @param bytes  as many as were asked for.
  virtual void release(void* memory, std::int64_t bytes) noexcept = 0;
  /// A new stream of this device.
  virtual std::unique_ptr<Stream> make_stream() = 0;
  /// Deals out memory of the host that this device copies from and to without the host's help; outlived by the device.
  virtual Device& host_memory() = 0;
};

/// One piece of a device's memory, dealt out as if it were a device: for buffers that come and go together. They lie side
/// by side, in fewer and larger pages than if each had memory of its own.
class Arena final : public Device {
 public:
  /// @param device   where from; outlives the arena.
  /// @param bytes    of all allocations together.
  /// @param pieces   the most allocations; each may waste up to 64 bytes.
  /// @throws Error   when the device has no room.
  Arena(Device& device, std::int64_t bytes, std::int64_t pieces);
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  DeviceKind kind() const override { return device_.kind(); }
  std::string name() const override { return device_.name(); }
  /// The next piece, aligned to 64 bytes; Error when the arena is full.
  void* allocate(std::int64_t bytes) override;
  /// Nothing: the memory goes with the arena.
  void release(void*, std::int64_t) noexcept override {}
  std::unique_ptr<Stream> make_stream() override { return device_.make_stream(); }
  Device& host_memory() override { return device_.host_memory(); }

 private:
  Device& device_;
  std::int64_t bytes_, dealt_ = 0;
  std::byte* first_;
};

/// The host's processor as a device. Large pieces of memory that are given back it keeps for who asks for as many bytes again,
/// and holds at most an eighth more than was in use at once (see BlockPool): a ledger counts what is in use, the process stays
/// as large as it has been. All of it goes with the device.
std::unique_ptr<Device> make_cpu_device();

/// The device of that kind that belongs to this rank: rank r of a machine with d GPUs has GPU r mod d.
/// @throws Error  when there is none; check_device() says so before.
std::unique_ptr<Device> make_device(DeviceKind kind);

/// A device together with the ledger that counts what is taken of it.
struct DeviceMemory {
  Device* device;            ///< where the memory comes from
  MemoryLedger* ledger;      ///< who counts it
  Tier tier = Tier::device;  ///< as what it is counted
};

/// Memory of a device for one tensor, counted in the ledger from construction to destruction.
class Buffer {
 public:
  /// No memory.
  Buffer() = default;
  /// @param memory    device and ledger; both outlive the buffer.
  /// @param category  as what it is counted.
  /// @param type      what its elements are.
  /// @param shape     their extents.
  /// @param what      its name in messages, as "parameters" or "logits".
  /// @throws Error    when the device or its limit has no room for it.
  Buffer(const DeviceMemory& memory, Category category, DType type, const Shape& shape, std::string_view what);
  ~Buffer();
  /// The memory changes hands; the ledger does not notice.
  Buffer(Buffer&& other) noexcept;
  /// Gives back what was held before.
  Buffer& operator=(Buffer&& other) noexcept;

  /// A view of the whole buffer.
  const Tensor& tensor() const { return tensor_; }

 private:
  DeviceMemory memory_{};
  Category category_{};
  Tensor tensor_;
};

}  // namespace rankwise
