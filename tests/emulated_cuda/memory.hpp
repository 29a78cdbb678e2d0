#pragma once

#include <cstddef>
#include <map>

/// @file
/// Device memory and pinned memory, and the checks of accesses to them.
///
/// Device memory is a region of addresses of its own. Around each allocation are 256 guard bytes; fresh
/// and freed memory is full of NaNs. Under AddressSanitizer the whole region is poisoned except for the allocations,
/// and those too while the host's own code runs. Without it the bytes around an allocation are looked at after each
/// operation of the device.

namespace emulated_cuda {

/// Bytes from the start of an allocation to its end.
struct Allocation {
  std::byte* data;    ///< first byte
  std::size_t bytes;  ///< as asked for
};

/// The memory of one device.
class DeviceMemory {
 public:
  /// Nothing allocated.
  /// @param capacity  bytes that allocations may hold together.
  explicit DeviceMemory(std::size_t capacity) : capacity_(capacity) {}

  /// A new allocation; null when memory runs out.
  void* allocate(std::size_t bytes);
  /// Frees the allocation that starts at @p data. @return  whether there was one.
  bool release(void* data);
  /// The allocation that holds all of these bytes, or whose end is @p data if there are none; null if there is none.
  const Allocation* find(const void* data, std::size_t bytes) const;
  /// Whether the address is in this device's region, allocated or not.
  bool covers(const void* data) const { return data >= base_ && data < base_ + reserved_; }
  /// The allocation around which something was overwritten, null if all is well. Always null under AddressSanitizer.
  const Allocation* damaged() const;
  /// Lets instrumented code touch allocations, or not.
  void open(bool is_open) const;

  /// Bytes that can still be allocated.
  std::size_t free_bytes() const { return capacity_ - used_; }
  /// Bytes of the device.
  std::size_t capacity() const { return capacity_; }

 private:
  std::byte* place_for(std::size_t bytes);
  bool grow_to(std::byte* end);

  std::size_t capacity_;
  std::size_t used_ = 0;
  std::byte* base_ = nullptr;              // of the region
  std::size_t reserved_ = 0;               // addresses of the region
  std::size_t reached_ = 0;                // bytes from the base that have been used at some time
  std::map<std::byte*, Allocation> live_;  // by address
};

/// Pinned memory of the host, which devices and host may touch at any time.
class PinnedMemory {
 public:
  /// A new allocation; null when memory runs out.
  void* allocate(std::size_t bytes);
  /// Frees the allocation that starts at @p data. @return  whether there was one.
  bool release(void* data);
  /// The allocation that holds all of these bytes; null if there is none.
  const Allocation* find(const void* data, std::size_t bytes) const;

 private:
  std::map<std::byte*, Allocation> live_;
};

/// Opens the memory of all devices, because an operation is about to run.
void open_device_memory();
/// Closes it again for the host's own code.
void close_device_memory();

}  // namespace emulated_cuda
