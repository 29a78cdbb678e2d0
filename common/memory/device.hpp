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
/// A device: memory, and streams of work on it. All code above this interface is written once for all devices.

namespace rankwise {

/// `--device`: kinds of devices.
enum class DeviceKind : std::uint8_t {
  cpu,   ///< the host's processor
  cuda,  ///< a GPU
};

/// A point in a stream: reached when all work given to the stream before it is done. Copies denote the same point.
/// An event without a handle has been reached already.
class Event {
 public:
  Event() = default;  ///< reached
  /// @param handle  the device's own object for the point.
  explicit Event(std::shared_ptr<void> handle) : handle_(std::move(handle)) {}
  /// The device's own object; null if the point has been reached already.
  void* handle() const { return handle_.get(); }

 private:
  std::shared_ptr<void> handle_;
};

/// A queue of work on one device, which runs in the order in which it was given. The CPU's stream runs each piece
/// of work before the call returns, so that its last three functions do nothing; other devices may run it later, at the
/// latest in synchronise(). Streams of one device run concurrently: work that depends on another stream waits for an Event
/// of it.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Sets all elements of @p to to zero.
  virtual void zero(const Tensor& to) = 0;
  /// Copies all elements; both tensors have the same type and size, and each may be on the host or on the device.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;
  /// to += from, element by element; same type and size, any type but u8. bf16 is added in f32 and rounded.
  virtual void add(const Tensor& to, const Tensor& from) = 0;
  /// Returns when all work given so far is done.
  virtual void synchronise() {}
  /// The point after all work given so far.
  virtual Event record() { return {}; }
  /// Makes later work of this stream wait for @p event, of a stream of the same device. The caller does not wait.
  virtual void wait([[maybe_unused]] const Event& event) {}
};

/// Copies the elements of @p from to the host, after all work of @p stream. Error unless they are of type T.
template <class T>
std::vector<T> to_host(Stream& stream, const Tensor& from)
{
  std::vector<T> elements(static_cast<std::size_t>(from.elements()));
  stream.copy(Tensor(elements.data(), dtype_of<T>(), {from.elements()}), from);
  stream.synchronise();
  return elements;
}

/// True in debug builds: memory has all ones before it is written, NaN in every float type.
#ifdef RANKWISE_POISON
constexpr bool poisons_memory = true;
#else
constexpr bool poisons_memory = false;
#endif

/// Memory and streams of one device.
class Device {
 public:
  virtual ~Device() = default;
  /// The kind of device.
  virtual DeviceKind kind() const = 0;
  /// The name printed in a report: "cpu", or the maker's name for it.
  virtual std::string name() const = 0;
  /// Allocates memory, aligned to 64 bytes, of undefined content (in debug builds all ones, NaN in every float
  /// type).
  /// @throws Error when the device is out of memory.
  virtual void* allocate(std::int64_t bytes) = 0;
  /// Frees memory that allocate() returned.
  /// @param bytes  the size that was requested.
  virtual void release(void* memory, std::int64_t bytes) noexcept = 0;
  /// A new stream of this device.
  virtual std::unique_ptr<Stream> make_stream() = 0;
  /// Allocator of pinned host memory, which this device copies from and to without the host's help. It belongs to
  /// the device; a device with the host's memory is its own.
  virtual Device& host_memory() { return *this; }
};

/// One allocation of a device from which smaller ones are taken, with the interface of a device: for buffers that
/// are allocated and freed together. They are contiguous, in fewer and larger pages than separate allocations.
class Arena final : public Device {
 public:
  /// @param device   provides the memory; outlives the arena.
  /// @param bytes    total of all allocations.
  /// @param pieces   maximum number of allocations; each may waste up to 64 bytes for alignment.
  /// @throws Error   when the device is out of memory.
  Arena(Device& device, std::int64_t bytes, std::int64_t pieces);
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  DeviceKind kind() const override { return device_.kind(); }
  std::string name() const override { return device_.name(); }
  /// The next piece, aligned to 64 bytes; Error when the arena is full.
  void* allocate(std::int64_t bytes) override;
  /// Does nothing: all memory is freed with the arena.
  void release(void*, std::int64_t) noexcept override {}
  std::unique_ptr<Stream> make_stream() override { return device_.make_stream(); }
  Device& host_memory() override { return device_.host_memory(); }

 private:
  Device& device_;
  std::int64_t bytes_, dealt_ = 0;
  std::byte* first_;
};

/// The host's processor as a device. It keeps large freed blocks for reuse, and so holds at most an eighth more
/// than its peak in use (see BlockPool): a ledger counts what is in use, while the process does not shrink. All of
/// it is freed with the device.
std::unique_ptr<Device> make_cpu_device();

/// This rank's device of the given kind: rank r of a machine with d GPUs has GPU r mod d.
/// @throws Error  when there is none; check_device() reports that earlier.
std::unique_ptr<Device> make_device(DeviceKind kind);

/// A device for a rehearsal: its memory takes none of the system's until it is written to and reads as zeros, and its
/// streams move whole numbers only.
/// @param kind  kind that it reports.
std::unique_ptr<Device> make_rehearsed_device(DeviceKind kind);

/// A device and the ledger that counts the memory allocated on it.
struct DeviceMemory {
  Device* device;            ///< provides the memory
  MemoryLedger* ledger;      ///< counts it
  Tier tier = Tier::device;  ///< tier under which it is counted
};

/// Memory of a device for one tensor, counted in the ledger from construction to destruction.
class Buffer {
 public:
  /// No memory.
  Buffer() = default;
  /// @param memory    device and ledger; both outlive the buffer.
  /// @param category  category under which it is counted.
  /// @param type      element type.
  /// @param shape     extents.
  /// @param what      name in messages, as "parameters" or "logits".
  /// @throws Error    when the device is out of memory or the buffer would exceed its limit.
  Buffer(const DeviceMemory& memory, Category category, DType type, const Shape& shape, std::string_view what);
  ~Buffer();
  /// Takes over the memory; the ledger's counts do not change.
  Buffer(Buffer&& other) noexcept;
  /// Frees the memory held before and takes over the other's.
  Buffer& operator=(Buffer&& other) noexcept;

  /// A view of the whole buffer.
  const Tensor& tensor() const { return tensor_; }

 private:
  DeviceMemory memory_{};
  Category category_{};
  Tensor tensor_;
};

}  // namespace rankwise
