#include "lessons/parallel/offload/tiers.hpp"

#include <algorithm>

#include "common/program/session.hpp"

namespace rankwise {

// ---- LinkLedger -----------------------------------------------------------------------------------------------------

void LinkLedger::begin_step()
{
  const std::scoped_lock lock(mutex_);
  in_step_ = true;
  step_clock_ = Stopwatch();
}

void LinkLedger::end_step()
{
  const std::scoped_lock lock(mutex_);
  in_step_ = false;
  ++use_.steps;
  use_.seconds += step_clock_.seconds();
}

LinkUse LinkLedger::use() const
{
  const std::scoped_lock lock(mutex_);
  return use_;
}

void LinkLedger::add_waiting(double seconds)
{
  const std::scoped_lock lock(mutex_);
  if (in_step_) use_.waited_s += seconds;
}

// ---- BlockStore -----------------------------------------------------------------------------------------------------

BlockStore::BlockStore(Tiers& tiers, Tier home, Category category, DType type, const std::string& what, bool tied)
    : tiers_(tiers), home_(home), category_(category)
{
  const ShardBlocks& all = tiers.blocks();
  std::int64_t& next = home == Tier::disk ? tiers.disk_link_->next_number : tiers.memory_link_.next_number;
  const std::int64_t first = next;
  std::int64_t elements = 0;
  std::vector<Range> places;  // in memory
  for (std::size_t b = 0; b < all.count(); ++b) {
    const bool has = !tied || all.is_tied(b);
    places.push_back({elements, has ? all[b].count : 0});
    numbers_.push_back(has ? next++ : -1);
    elements += places.back().count;
  }
  if (home == Tier::disk) {
    disk_bytes_ = (next - first) * tiers.file_->block_bytes();
    tiers.host_.memory.ledger->enter(category, home, disk_bytes_, "blocks on disk");
    return;
  }
  memory_ = Buffer(tiers.place(home).memory, category, type, {elements}, what);
  for (const Range& place : places) blocks_.push_back(memory_.tensor().slice(place));
}

BlockStore::BlockStore(Tiers& tiers, const std::vector<Tensor>& bucket_shards) : tiers_(tiers), home_(Tier::device)
{
  const OffloadPlan& plan = tiers.plan_;
  for (std::size_t i = 0; i < bucket_shards.size(); ++i)
    for (const std::size_t b : plan.blocks.of_shard(i)) {
      numbers_.push_back(tiers.memory_link_.next_number++);
      blocks_.push_back(bucket_shards[i].slice({plan.blocks[b].first - plan.own[i].first, plan.blocks[b].count}));
    }
}

BlockStore::~BlockStore()
{
  if (home_ == Tier::disk) tiers_.host_.memory.ledger->leave(category_, home_, disk_bytes_);
}

Tensor BlockStore::in_place(std::size_t block) const
{
  check(home_ != Tier::disk, "a block on disk was used in place");
  return blocks_[block];
}

namespace {

/// Tensor like @p like at the start of a buffer.
Tensor tensor_in(const BlockBuffer& buffer, const Tensor& like)
{
  return {buffer.bytes().data(), like.type(), like.shape()};
}

}  // namespace

Pending BlockStore::fetch(std::size_t block, const Tensor& to, Tier used)
{
  Tiers& tiers = tiers_;
  const std::int64_t number = numbers_[block];
  const Event ready = tiers.device_.stream.record();  // after all work that the device has been given so far
  if (home_ != Tier::disk)
    return tiers.memory_link_.queue.fetch(number, [&tiers, from = blocks_[block], to, used, ready] {
      tiers.copy_over(*tiers.memory_link_.in, used, to, from, ready);
    });
  return tiers.disk_link_->queue.fetch(number, [&tiers, number, to, used, ready] {
    const auto size = static_cast<std::size_t>(tiers.file_->block_bytes());
    const std::span bytes = used == Tier::host ? std::span(to.raw(), size) : tiers.coming_.bytes();
    tiers.links_.count(TierLink::from_disk, std::ssize(bytes), [&] { tiers.file_->read(number, bytes); });
    if (used == Tier::device) tiers.copy_over(*tiers.disk_link_->in, used, to, tensor_in(tiers.coming_, to), ready);
  });
}

Pending BlockStore::store(std::size_t block, const Tensor& from, Tier used)
{
  Tiers& tiers = tiers_;
  const std::int64_t number = numbers_[block];
  const Event ready = tiers.device_.stream.record();
  if (home_ != Tier::disk)
    return tiers.memory_link_.queue.store(number, [&tiers, to = blocks_[block], from, home = home_, ready] {
      tiers.copy_over(*tiers.memory_link_.out, home, to, from, ready);
    });
  return tiers.disk_link_->queue.store(number, [&tiers, number, from, used, ready] {
    if (used == Tier::device)
      tiers.copy_over(*tiers.disk_link_->out, Tier::host, tensor_in(tiers.going_, from), from, ready);
    const auto size = static_cast<std::size_t>(tiers.file_->block_bytes());
    const std::span bytes = used == Tier::host ? std::span(from.raw(), size) : tiers.going_.bytes();
    tiers.links_.count(TierLink::to_disk, std::ssize(bytes), [&] { tiers.file_->write(number, bytes); });
  });
}

// ---- Tiers ----------------------------------------------------------------------------------------------------------

Tiers::Tiers(const OffloadPlan& plan, const ComputePlace& device, const ComputePlace& host, TimeLedger& time,
             int rank)
    : plan_(plan), device_(device), host_(host), time_(time), memory_link_(*device.memory.device, time)
{
  if (disk_blocks(plan) == 0) return;
  const std::int64_t bytes = plan.disk_block_bytes();
  file_.emplace(plan.options.directory(), rank, disk_blocks(plan), bytes, plan.options.keep);
  coming_ = BlockBuffer(host.memory, bytes, DType::u8, "buffer for a block from the disk");
  going_ = BlockBuffer(host.memory, bytes, DType::u8, "buffer for a block to the disk");
  disk_link_.emplace(*device.memory.device, time);
}

BlockBuffer Tiers::make_slot(Tier home, Tier used, DType type, const std::string& what) const
{
  return {place(used).memory, plan_.slot_bytes(home, used, type), type, "slot for " + what};
}

void Tiers::copy_over(Stream& stream, Tier used, const Tensor& to, const Tensor& from, const Event& ready)
{
  stream.wait(ready);
  stream.synchronise();
  links_.count(used == Tier::device ? TierLink::to_device : TierLink::from_device, to.bytes(), [&] {
    stream.copy(to, from);
    stream.synchronise();
  });
}

void Tiers::wait(Pending& transfer)
{
  const auto span = time_.span(Work::exposed, "waiting for a block");
  const Stopwatch clock;
  transfer.wait();
  links_.add_waiting(clock.seconds());
}

void Tiers::measure()
{
  if (plan_.options.directory().empty()) return;
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "measuring the disk together");
  if (!file_) return;
  constexpr std::int64_t most = 512;  // blocks: more than the cache of a disk takes
  disk_alone_ = measure_disk(*file_, std::min(file_->blocks(), most), coming_.bytes(), going_.bytes());
}

void Tiers::close()
{
  if (file_) file_->close();
}

}  // namespace rankwise
