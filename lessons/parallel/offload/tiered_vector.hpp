#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/memory/device.hpp"
#include "lessons/frame/shards.hpp"
#include "lessons/parallel/offload/tiers.hpp"

/// @file
/// Vectors that are stored in one tier and used in another: their blocks are fetched one by one, and stored again.

namespace rankwise {

/// A vector in the tier where it is used, for walks over its blocks:
///
///     vector.begin(Access::update);
///     for (std::size_t b = 0; b < blocks.count(); ++b) change(vector.block(b));
///     vector.end();
///
/// While one block is used, the next one is fetched and the previous one is stored, in three slots. With a disk
/// there are more (OffloadPlan::window()): then several blocks are fetched ahead, in order, and several are being
/// stored.
///
///     slot 0   [ 0 fetched ][ 0 used ][ 0 stored ][ 3 fetched ][ 3 used ]
///     slot 1                [ 1 fetched ][ 1 used ][ 1 stored ][ 4 fetched ]
///     slot 2                             [ 2 fetched ][ 2 used ][ 2 stored ]
///
/// A vector that is used in its home tier does not move.
class TieredVector {
 public:
  /// @param tiers  moves the blocks; outlives this.
  /// @param home   tier of the blocks.
  /// @param used   device or host.
  /// @param type   of the elements.
  /// @param what   its name in messages.
  /// @param store  holds the blocks; nullptr: there are none until show().
  /// @throws Error when the memory does not suffice.
  TieredVector(Tiers& tiers, Tier home, Tier used, DType type, const std::string& what,
               std::shared_ptr<BlockStore> store);

  /// Begins a walk, and starts to fetch its first blocks.
  void begin(Access access);
  /// Advances to the next block. The previous one, which must not be used any more, begins to be stored, except
  /// with Access::read. The block ahead_ places further begins to be fetched, if there is one, except with
  /// Access::write; begin() has done so for the first ahead_ blocks. When this returns no transfer to or from this
  /// block's slot is under way; nothing else is waited for, but for the slot that fetch() needs. A vector that does
  /// not move gives out the block in place, of its store.
  /// @param block   0, 1, ... in this order.
  /// @return        (its elements) where it is used; undefined with Access::write.
  /// @throws Error  for a block out of order.
  Tensor block(std::size_t block);
  /// Ends a walk after its last block. All blocks are stored when this returns.
  void end();
  /// One block, outside of walks; valid until the next call on this vector.
  Tensor at(std::size_t block);
  /// Takes the blocks of another store in the same tier from now on.
  void show(std::shared_ptr<BlockStore> store)
  {
    store_ = std::move(store);
    there_.reset();
  }

 private:
  /// Buffer for one block, and its transfer if one is under way.
  struct Slot {
    BlockBuffer memory;
    Pending transfer;
  };

  /// True if there are slots, to and from which blocks move.
  bool moves() const { return home_ != used_; }
  /// The slot of a block. Blocks take the slots in turn.
  Slot& slot(std::size_t block) { return slots_[block % slots_.size()]; }
  /// A block's elements in its slot.
  Tensor in_slot(std::size_t block);
  /// Waits until the block's slot is free, and starts to fetch the block.
  void fetch(std::size_t block);
  /// Starts to store a block that has been used; does nothing with Access::read.
  void give_back(std::size_t block);

  Tiers& tiers_;
  std::shared_ptr<BlockStore> store_;
  Tier home_, used_;
  Access access_ = Access::read;
  std::size_t next_ = 0;              // number of the block that block() gives out next
  std::size_t ahead_ = 0;             // blocks fetched ahead of the one in use: 1, or more with a disk
  std::optional<std::size_t> there_;  // block that at() fetched last, since the last walk
  std::vector<Slot> slots_;
};

}  // namespace rankwise
