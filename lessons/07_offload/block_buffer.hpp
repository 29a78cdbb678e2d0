#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/memory/device.hpp"
#include "lessons/07_offload/block_file.hpp"

/// @file
/// Memory to read blocks into and to write them from.

namespace rankwise {

/// Bytes of one block, aligned to disk_alignment. The ledger counts them as staging, including the disk_alignment
/// bytes that alignment costs.
class BlockBuffer {
 public:
  /// An empty buffer.
  BlockBuffer() = default;
  /// @param memory  of the host, where the disk can reach it.
  /// @param bytes   of a block.
  /// @param what    its name in messages.
  /// @throws Error  when the memory does not suffice.
  BlockBuffer(const DeviceMemory& memory, std::int64_t bytes, std::string_view what)
      : memory_(memory, Category::staging, DType::u8, {bytes + disk_alignment}, what), bytes_(bytes)
  {
    // A block may be shorter than its place on the disk: earlier contents of this memory must not be written there.
    if (memory.device->kind() == DeviceKind::cpu) std::ranges::fill(this->bytes(), std::byte{});
  }

  /// (bytes); moving the buffer does not move this memory.
  std::span<std::byte> bytes() const
  {
    std::byte* const first = memory_.tensor().raw();
    const auto behind = reinterpret_cast<std::uintptr_t>(first) % disk_alignment;
    return {first + (behind == 0 ? 0 : disk_alignment - behind), static_cast<std::size_t>(bytes_)};
  }

 private:
  Buffer memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace rankwise
