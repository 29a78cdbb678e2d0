#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/memory/device.hpp"
#include "common/messages/communicator.hpp"

/// @file
/// Memory of one node that all ranks of a group read.

namespace rankwise {

/// The shared memory of the N ranks of a group, all on one machine. They make it, destroy it and call it together.
///
/// Its device() deals out buffers that lie in windows of shared memory (MPI-3): each rank has its own buffer, and
/// finds those of the others by peers(). A rank that waits looks for a moment whether the others have come, and then
/// sleeps; MPI goes on with messages that are under way.
class SharedMemory {
 public:
  /// @param communicator  the N ranks, N >= 1; outlives this.
  /// @throws Error        on all ranks, when they do not share memory, or there is none left.
  explicit SharedMemory(const Communicator& communicator);
  /// All buffers are given back by then, or the job ends; unless an exception is on its way out.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Memory that the other ranks can read. allocate() and release() are called by all ranks, in the same order,
  /// each with its own number of bytes. When there is no room for all of them, allocate() throws Error on all
  /// ranks.
  Device& device();

  /// Where @p own lies at each rank: N addresses in this process, each of the same place in the buffer that this
  /// rank and its peers allocated together, until the next call. Empty on all ranks unless @p own lies in such a
  /// buffer on all of them, in the same one and at the same place. All ranks make this call; it returns when all
  /// of them have, so what they wrote before it is there.
  /// @cost  one barrier.
  std::span<void* const> peers(const void* own);

  /// Starts a turn of data on their way: N areas, one a rank, in this process's addresses. In a turn each rank
  /// writes to its own area, calls barrier(), and reads the areas of the others; it may then start the next turn
  /// at once, for two turns in a row have different areas. All ranks make this call, and one barrier or more in
  /// each turn.
  std::span<std::byte* const> next_areas();
  /// Bytes of one area.
  static constexpr std::int64_t area_bytes = 256 << 10;

  /// Returns when all ranks have called it; what they wrote to memory before can be read after.
  void barrier();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rankwise
