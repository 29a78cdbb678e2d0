#include "lessons/parallel/offload/tiered_vector.hpp"

#include <algorithm>

namespace rankwise {

TieredVector::TieredVector(Tiers& tiers, Tier home, Tier used, DType type, const std::string& what,
                           std::shared_ptr<BlockStore> store)
    : tiers_(tiers), store_(std::move(store)), home_(home), used_(used)
{
  if (!moves()) return;
  slots_.resize(tiers.window(home, used));
  ahead_ = (slots_.size() - 1) / 2;
  for (Slot& slot : slots_) slot.memory = tiers.make_slot(home, used, type, what);
}

Tensor TieredVector::in_slot(std::size_t block)
{
  return slot(block).memory.tensor(tiers_.blocks()[block].count);
}

void TieredVector::fetch(std::size_t block)
{
  tiers_.wait(slot(block).transfer);  // the slot's previous block is stored
  slot(block).transfer = store_->fetch(block, in_slot(block), used_);
}

void TieredVector::give_back(std::size_t block)
{
  if (access_ != Access::read) slot(block).transfer = store_->store(block, in_slot(block), used_);
}

void TieredVector::begin(Access access)
{
  check(next_ == 0, "a walk over a vector begins before the previous one has ended");
  access_ = access;
  there_.reset();
  for (std::size_t b = 0; moves() && access != Access::write && b < std::min(ahead_, tiers_.blocks().count()); ++b)
    fetch(b);
}

Tensor TieredVector::block(std::size_t block)
{
  // BEGIN EXERCISE 07.1
  check(block == next_++, "a block of a vector is used out of order");
  if (!moves()) return store_->in_place(block);
  const bool comes = access_ != Access::write;
  // The previous block has been used. Its slot is busy until it is stored.
  if (block > 0) give_back(block - 1);
  // A later block takes the slot that was left first: fetch() waits for that one only.
  if (comes && block + ahead_ < tiers_.blocks().count()) fetch(block + ahead_);
  // Both continue while this block is used. What has to end is its own fetch; or, with Access::write, the store before it.
  tiers_.wait(slot(block).transfer);
  return in_slot(block);
  // END EXERCISE
}

void TieredVector::end()
{
  check(next_ == tiers_.blocks().count(), "a walk over a vector ends before its last block");
  if (moves()) {
    if (next_ > 0) give_back(next_ - 1);
    for (Slot& slot : slots_) tiers_.wait(slot.transfer);
  }
  next_ = 0;
}

Tensor TieredVector::at(std::size_t block)
{
  check(next_ == 0, "a block was requested in the middle of a walk");
  if (!moves()) return store_->in_place(block);
  if (there_ != block) fetch(block);
  there_ = block;
  tiers_.wait(slot(block).transfer);
  return in_slot(block);
}

}  // namespace rankwise
