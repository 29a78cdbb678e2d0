#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/memory/device.hpp"
#include "common/messages/communicator.hpp"

/// @file
/// Memory of one node that all ranks of a group can read.

namespace rankwise {

/// The shared memory of the N ranks of a group, all on one machine. They create, destroy and call it together.
///
/// Its device() allocates buffers in shared-memory windows (MPI-3): each rank has its own buffer, and peers()
/// returns the addresses of the other ranks' buffers. A rank that waits spins for a moment and then sleeps; MPI
/// keeps making progress on pending messages.
class SharedMemory {
 public:
  /// @param communicator  the N ranks, N >= 1; outlives this.
  /// @throws Error        on all ranks, if they do not share memory or it is exhausted.
  explicit SharedMemory(const Communicator& communicator);
  /// All buffers must have been freed, or the job ends; this is not checked during stack unwinding.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Allocator of memory that the other ranks can read. All ranks call allocate() and release() in the same order,
  /// each with its own number of bytes. If the memory does not suffice for all ranks, allocate() throws Error on
  /// all ranks.
  Device& device();

  /// The counterparts of @p own on all ranks: N addresses in this process, at the same offset in the buffers that
  /// the ranks allocated together; valid until the next call. Empty on all ranks unless @p own is in the same
  /// shared buffer and at the same offset on every rank. All ranks make this call; it returns when all have called
  /// it, so data written before is visible.
  /// @cost  one barrier.
  std::span<void* const> peers(const void* own);

  /// Starts an exchange through staging areas: returns N areas, one for each rank, as addresses in this process. In
  /// each exchange a rank writes to its own area, calls barrier(), and reads the areas of the others. It may then
  /// start the next exchange at once, because consecutive exchanges use different areas. All ranks make this call,
  /// and call barrier() at least once in each exchange.
  std::span<std::byte* const> next_areas();
  /// Bytes of one area.
  static constexpr std::int64_t area_bytes = 256 << 10;

  /// Returns when all ranks have called it; memory written before the call can be read after it.
  void barrier();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rankwise
