#include "lessons/07_offload/tiers.hpp"

#include <algorithm>
#include <utility>

#include "common/program/session.hpp"

namespace rankwise {

// ---- Places ---------------------------------------------------------------------------------------------------------

Places::Places(const DeviceMemory& memory, const ComputePlace& on_device, const Arithmetic& arithmetic)
    : host_memory{&memory.device->host_memory(), memory.ledger, Tier::host},
      host_stream(host_memory.device->make_stream()),
      host_kernels(arithmetic.make_kernels(host_memory, *host_stream)),
      device(on_device),
      host{*host_kernels, *host_stream}
{
}

// ---- LinkLedger -----------------------------------------------------------------------------------------------------

LinkUse& LinkUse::operator+=(const LinkUse& other)
{
  for (std::size_t link = 0; link < link_count; ++link) {
    bytes[link] += other.bytes[link];
    busy_s[link] += other.busy_s[link];
  }
  waited_s += other.waited_s;
  return *this;
}

LinkUse LinkUse::since(const LinkUse& before) const
{
  LinkUse use = *this;
  for (std::size_t link = 0; link < link_count; ++link) {
    use.bytes[link] -= before.bytes[link];
    use.busy_s[link] -= before.busy_s[link];
  }
  use.waited_s -= before.waited_s;
  return use;
}

LinkUse LinkLedger::use() const
{
  const std::scoped_lock lock(mutex_);
  return use_;
}

void LinkLedger::add(TierLink link, std::int64_t bytes, double seconds)
{
  const std::scoped_lock lock(mutex_);
  use_.bytes[static_cast<std::size_t>(link)] += bytes;
  use_.busy_s[static_cast<std::size_t>(link)] += seconds;
}

void LinkLedger::add_waiting(double seconds)
{
  const std::scoped_lock lock(mutex_);
  use_.waited_s += seconds;
}

// ---- Disk -----------------------------------------------------------------------------------------------------------

struct Tiers::Disk {
  Disk(const OffloadPlan& plan, const DeviceMemory& device, const DeviceMemory& host, TimeLedger& time, int rank)
      : file(plan.options.directory(), rank, disk_blocks(plan), plan.disk_block_bytes(),
             plan.options.keep),
        coming(host, file.block_bytes(), DType::u8, "buffer for a block from the disk"),
        going(host, file.block_bytes(), DType::u8, "buffer for a block to the disk"),
        in(device.device->make_stream()),
        out(device.device->make_stream()),
        queue(time)
  {
  }

  BlockFile file;
  BlockBuffer coming, going;  // each used by one thread of the queue
  std::unique_ptr<Stream> in, out;
  std::int64_t next_block = 0;  // of the file
  TransferQueue queue;          // last: it uses all of the above
};

// ---- Stores ---------------------------------------------------------------------------------------------------------

/// Blocks in memory of the device or of the host.
class StoreInMemory final : public BlockStore {
 public:
  StoreInMemory(Tiers& tiers, Tier tier, std::vector<Tensor> blocks, Buffer memory)
      : tiers_(tiers),
        tier_(tier),
        first_(std::exchange(tiers.next_number_, tiers.next_number_ + static_cast<std::int64_t>(blocks.size()))),
        blocks_(std::move(blocks)),
        memory_(std::move(memory))
  {
  }

  Tier home() const override { return tier_; }
  Tensor in_place(std::size_t block) const override { return blocks_[block]; }

  BlockTransfer fetch(std::size_t block, const Tensor& to, Tier) override
  {
    const TierLink link = tier_ == Tier::host ? TierLink::to_device : TierLink::from_device;
    return tiers_.queue_.fetch(number(block), copy(*tiers_.in_, link, to, blocks_[block]));
  }

  BlockTransfer store(std::size_t block, const Tensor& from, Tier) override
  {
    const TierLink link = tier_ == Tier::host ? TierLink::from_device : TierLink::to_device;
    return tiers_.queue_.store(number(block), copy(*tiers_.out_, link, blocks_[block], from));
  }

 private:
  std::int64_t number(std::size_t block) const { return first_ + static_cast<std::int64_t>(block); }

  /// Function that copies after all work that the device has been given so far.
  std::function<void()> copy(Stream& stream, TierLink link, const Tensor& to, const Tensor& from) const
  {
    return [&tiers = tiers_, &stream, link, to, from, ready = tiers_.compute_.record()] {
      tiers.copy_over(stream, link, to, from, ready);
    };
  }

  Tiers& tiers_;
  Tier tier_;
  std::int64_t first_;
  std::vector<Tensor> blocks_;
  Buffer memory_;  // owned memory; empty for a store over existing tensors
};

/// Blocks on disk. Between disk and device they pass through buffers on the host.
class StoreOnDisk final : public BlockStore {
 public:
  /// @param numbers  number in the file, by block.
  /// @param bytes    of all blocks.
  StoreOnDisk(Tiers& tiers, std::vector<std::int64_t> numbers, std::int64_t bytes, Category category)
      : tiers_(tiers), numbers_(std::move(numbers)), bytes_(bytes), category_(category)
  {
    tiers_.host_.ledger->enter(category_, Tier::disk, bytes_, "blocks on disk");
  }
  ~StoreOnDisk() override { tiers_.host_.ledger->leave(category_, Tier::disk, bytes_); }

  Tier home() const override { return Tier::disk; }
  Tensor in_place(std::size_t) const override { throw Error("a block on disk was used in place"); }

  BlockTransfer fetch(std::size_t block, const Tensor& to, Tier used) override
  {
    Tiers::Disk& disk = *tiers_.disk_;
    const std::int64_t number = numbers_[block];
    const bool here = used == Tier::host;
    return disk.queue.fetch(number, [this, &disk, number, here, to, ready = event(used)] {
      const std::span<std::byte> bytes = here ? whole(to) : disk.coming.bytes();
      tiers_.links_.count(TierLink::from_disk, disk.file.block_bytes(), [&] { disk.file.read(number, bytes); });
      if (!here) tiers_.copy_over(*disk.in, TierLink::to_device, to, tensor_in(bytes, to), ready);
    });
  }

  BlockTransfer store(std::size_t block, const Tensor& from, Tier used) override
  {
    Tiers::Disk& disk = *tiers_.disk_;
    const std::int64_t number = numbers_[block];
    const bool here = used == Tier::host;
    return disk.queue.store(number, [this, &disk, number, here, from, ready = event(used)] {
      const std::span<std::byte> bytes = here ? whole(from) : disk.going.bytes();
      if (!here) tiers_.copy_over(*disk.out, TierLink::from_device, tensor_in(bytes, from), from, ready);
      tiers_.links_.count(TierLink::to_disk, disk.file.block_bytes(), [&] { disk.file.write(number, bytes); });
    });
  }

 private:
  /// Event after all work that the device has been given so far, if the block is used there.
  Event event(Tier used) const { return used == Tier::device ? tiers_.compute_.record() : Event(); }

  /// Whole disk block whose first bytes are a block's elements.
  std::span<std::byte> whole(const Tensor& block) const
  {
    return {block.raw(), static_cast<std::size_t>(tiers_.disk_->file.block_bytes())};
  }

  /// Tensor like @p like at the start of @p bytes.
  static Tensor tensor_in(std::span<std::byte> bytes, const Tensor& like)
  {
    return {bytes.data(), like.type(), like.shape()};
  }

  Tiers& tiers_;
  std::vector<std::int64_t> numbers_;
  std::int64_t bytes_;
  Category category_;
};

// ---- Tiers ----------------------------------------------------------------------------------------------------------

Tiers::Tiers(const OffloadPlan& plan, const DeviceMemory& device, Stream& compute, const DeviceMemory& host,
             TimeLedger& time, int rank)
    : plan_(plan),
      device_(device),
      host_(host),
      compute_(compute),
      time_(time),
      in_(device.device->make_stream()),
      out_(device.device->make_stream()),
      queue_(time)
{
  if (disk_blocks(plan) > 0) disk_ = std::make_unique<Disk>(plan, device, host, time, rank);
}

Tiers::~Tiers() = default;

std::unique_ptr<BlockStore> Tiers::make_store(Tier tier, Category category, DType type, const std::string& what,
                                              bool tied)
{
  const ShardBlocks& all = plan_.blocks;
  std::int64_t elements = 0;
  std::vector<Range> places(all.count());  // in memory
  std::vector<std::int64_t> numbers(all.count());
  for (std::size_t b = 0; b < all.count(); ++b) {
    if (tied && !all.is_tied(b)) continue;
    places[b] = {elements, all[b].count};
    elements += all[b].count;
    if (tier == Tier::disk) numbers[b] = disk_->next_block++;
  }
  if (tier == Tier::disk) {
    const auto blocks = std::count_if(places.begin(), places.end(), [](const Range& r) { return !r.empty(); });
    return std::make_unique<StoreOnDisk>(*this, std::move(numbers), blocks * disk_->file.block_bytes(), category);
  }
  Buffer memory(this->memory(tier), category, type, {elements}, what);
  std::vector<Tensor> blocks;
  for (const Range& place : places) blocks.push_back(memory.tensor().slice(place));
  return std::make_unique<StoreInMemory>(*this, tier, std::move(blocks), std::move(memory));
}

std::unique_ptr<BlockStore> Tiers::lend(Tier tier, const std::vector<Tensor>& bucket_shards)
{
  std::vector<Tensor> blocks;
  for (std::size_t i = 0; i < bucket_shards.size(); ++i) {
    const Range numbers = plan_.blocks.of_shard(i);
    for (std::int64_t b = numbers.first; b < numbers.end(); ++b) {
      const Range elements = plan_.blocks[static_cast<std::size_t>(b)];
      blocks.push_back(bucket_shards[i].slice({elements.first - plan_.own[i].first, elements.count}));
    }
  }
  return std::make_unique<StoreInMemory>(*this, tier, std::move(blocks), Buffer());
}

BlockBuffer Tiers::make_slot(Tier home, Tier used, DType type, const std::string& what) const
{
  return {memory(used), plan_.slot_bytes(home, used, type), type, "slot for " + what};
}

void Tiers::copy_over(Stream& stream, TierLink link, const Tensor& to, const Tensor& from, const Event& ready)
{
  stream.wait(ready);
  stream.synchronise();
  links_.count(link, to.bytes(), [&] {
    stream.copy(to, from);
    stream.synchronise();
  });
}

void Tiers::wait(BlockTransfer& transfer)
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
  if (!disk_) return;
  constexpr std::int64_t most = 512;  // blocks: more than the cache of a disk takes
  disk_alone_ =
      measure_disk(disk_->file, std::min(disk_->file.blocks(), most), disk_->coming.bytes(), disk_->going.bytes());
}

void Tiers::close()
{
  if (disk_) disk_->file.close();
}

void Tiers::begin_step()
{
  before_step_ = links_.use();
  step_clock_ = Stopwatch();
}

void Tiers::end_step()
{
  ++steps_.count;
  steps_.seconds += step_clock_.seconds();
  steps_.links += links_.use().since(before_step_);
}

}  // namespace rankwise
