#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "lessons/07_offload/tiers.hpp"
#include "lessons/frame/shards.hpp"

/// @file
/// Vectors that are used elsewhere than where they lie: their blocks come one by one, and go back.

namespace rankwise {

/// A vector where it is used. Somebody walks over its blocks:
///
///     vector.begin(Access::update);
///     for (std::size_t b = 0; b < blocks.count(); ++b) change(vector.block(b));
///     vector.end();
///
/// While one block is used the next one comes, and the one before goes. There is room for three, or with a disk behind it
/// for more (OffloadPlan::window()): then several come, in the order of their numbers, and several go.
///
///     room 0   [ 0 comes ][ 0 used ][ 0 goes ][ 3 comes ][ 3 used ]
///     room 1              [ 1 comes ][ 1 used ][ 1 goes ][ 4 comes ]
///     room 2                         [ 2 comes ][ 2 used ][ 2 goes ]
///
/// A vector that is used where it lies does not move.
class TieredVector {
 public:
  /// @param tiers  brings the blocks; outlives this.
  /// @param store  where they lie; outlives the walks.
  /// @param used   device or host.
  /// @param type   of the elements.
  /// @param what   its name in messages.
  /// @throws Error when there is no room.
  TieredVector(Tiers& tiers, BlockStore* store, Tier used, DType type, const std::string& what);
  /// One whose blocks somebody is going to show().
  /// @param lies  where.
  TieredVector(Tiers& tiers, Tier home, Tier used, DType type, const std::string& what);

  /// Begins a walk. Its first blocks come from now on.
  void begin(Access access);
  /// Goes on to the next block; the one before is not touched any more.
  /// @param block  0, 1, ... in this order.
  /// @return       (its elements) where it is used; with Access::write of undefined content.
  Tensor block(std::size_t block);
  /// Ends a walk that has come to the last block. All of them are back when this returns.
  void end();
  /// One block, to be read before anything else is asked of this vector; while nobody walks.
  Tensor at(std::size_t block);
  /// From now on the blocks are those of another store in the same tier.
  void show(BlockStore* store)
  {
    store_ = store;
    there_.reset();
  }

 private:
  /// Room for a block, and what is on its way to it or from it.
  struct Slot {
    BlockSlot memory;
    BlockTransfer transfer;
  };

  bool moves() const { return home_ != used_; }
  Slot& slot(std::size_t block) { return slots_[block % slots_.size()]; }
  Tensor in_slot(std::size_t block);
  void fetch(std::size_t block);
  void give_back(std::size_t block);

  Tiers& tiers_;
  BlockStore* store_ = nullptr;
  Tier home_, used_;
  Access access_ = Access::read;
  std::size_t next_ = 0;              // block
  std::size_t ahead_ = 0;             // blocks that come while one is used
  std::optional<std::size_t> there_;  // what at() gave last of this store, since the last walk
  std::vector<Slot> slots_;
};

}  // namespace rankwise
