#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/memory/device.hpp"
#include "common/program/time_ledger.hpp"
#include "lessons/parallel/offload/tiers.hpp"
#include "tests/lessons/07/faulty_disk.hpp"
#include "tests/lessons/07/offload_plan.hpp"
#include "tests/scratch_folder.hpp"

/// @file
/// For tests of what moves between tiers: a rank with its memories, whose links can be made slow.

namespace rankwise::testing {

/// A device whose streams take so long for a copy. The code is right whether they do or not: what is wrong shows only if
/// they do.
class SlowDevice final : public Device {
 public:
  DeviceKind kind() const override { return device_->kind(); }
  std::string name() const override { return device_->name(); }
  void* allocate(std::int64_t bytes) override { return device_->allocate(bytes); }
  void release(void* memory, std::int64_t bytes) noexcept override { device_->release(memory, bytes); }
  std::unique_ptr<Stream> make_stream() override
  {
    return std::make_unique<SlowStream>(device_->make_stream(), copy_ms);
  }
  Device& host_memory() override { return device_->host_memory(); }

  std::atomic<int> copy_ms = 0;  ///< milliseconds

 private:
  /// Sleeps before it copies.
  class SlowStream final : public Stream {
   public:
    SlowStream(std::unique_ptr<Stream> stream, const std::atomic<int>& copy_ms)
        : stream_(std::move(stream)), copy_ms_(copy_ms)
    {
    }
    void zero(const Tensor& to) override { stream_->zero(to); }
    void copy(const Tensor& to, const Tensor& from) override
    {
      if (copy_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(copy_ms_));
      stream_->copy(to, from);
    }
    void add(const Tensor& to, const Tensor& from) override { stream_->add(to, from); }
    void synchronise() override { stream_->synchronise(); }
    Event record() override { return stream_->record(); }
    void wait(const Event& event) override { stream_->wait(event); }

   private:
    std::unique_ptr<Stream> stream_;
    const std::atomic<int>& copy_ms_;
  };

  std::unique_ptr<Device> device_ = make_cpu_device();
};

/// A rank with the tiers of a plan.
struct TieredRank {
  explicit TieredRank(const PlanOptions& options) : plan(plan_in(folder / "", options))
  {
    tiers.links().begin_step();
  }
  /// One whose host computes with other kernels.
  TieredRank(const PlanOptions& options, const Kernels& of_host)
      : plan(plan_in(folder / "", options)), host_kernels(of_host)
  {
    tiers.links().begin_step();
  }
  /// One that owns other elements than those of the model, in shards of any size.
  TieredRank(const PlanOptions& options, const std::vector<Range>& own) : plan(plan_in(folder / "", options, own))
  {
    tiers.links().begin_step();
  }

  /// Makes all links slow from now on, or as fast as they are. No transfer is pending.
  void make_slow(bool slow = true)
  {
    device.copy_ms = slow ? slow_ms : 0;
    disk.before_read = disk.before_write = [slow](std::size_t count, off_t) {
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
      return static_cast<ssize_t>(count);
    };
  }
  /// Gives a block of a store content.
  void put(BlockStore& store, std::size_t block, const Tensor& content)
  {
    if (store.home() != Tier::disk) {
      stream->copy(store.in_place(block), content);
      return;
    }
    const BlockBuffer slot = tiers.make_slot(Tier::disk, Tier::host, content.type(), "a block of the test");
    const Tensor there = slot.tensor(content.elements());
    stream->copy(there, content);
    Pending transfer = store.store(block, there, Tier::host);
    transfer.wait();
  }
  /// Copies a block of a store.
  void get(BlockStore& store, std::size_t block, const Tensor& to)
  {
    if (store.home() != Tier::disk) {
      stream->copy(to, store.in_place(block));
      return;
    }
    const BlockBuffer slot = tiers.make_slot(Tier::disk, Tier::host, to.type(), "a block of the test");
    const Tensor there = slot.tensor(to.elements());
    Pending transfer = store.fetch(block, there, Tier::host);
    transfer.wait();
    stream->copy(to, there);
  }
  /// Gives all blocks of a store those elements of a flat vector that are theirs.
  void put_all(BlockStore& store, const Tensor& flat)
  {
    for (std::size_t b = 0; b < plan.blocks.count(); ++b) put(store, b, flat.slice(plan.blocks[b]));
  }
  /// The number of elements in a store that are not, to the bit, those of a flat vector.
  std::int64_t different(BlockStore& store, const Tensor& flat)
  {
    std::int64_t count = 0;
    for (std::size_t b = 0; b < plan.blocks.count(); ++b) {
      const Range elements = plan.blocks[b];
      const Tensor there = lab.zeros(flat.type(), {elements.count});
      get(store, b, there);
      count += different_bits(there, flat.slice(elements));
    }
    return count;
  }

  static constexpr int slow_ms = 1;
  Threads one{1};  // all sums of the reference kernels are the same, whatever the number of threads
  ScratchFolder folder;
  FaultyDisk disk;
  Laboratory lab;
  SlowDevice device;
  MemoryLedger ledger;
  TimeLedger time;
  std::unique_ptr<Stream> stream = device.host_memory().make_stream();  // is not slow
  std::unique_ptr<Stream> host_stream = device.host_memory().make_stream();
  DeviceMemory memory{&device, &ledger};
  DeviceMemory host{&device.host_memory(), &ledger, Tier::host};
  OffloadPlan plan;
  const Kernels& host_kernels = lab.kernels();
  Tiers tiers{plan, {memory, *stream, lab.kernels()}, {host, *host_stream, host_kernels}, time, world().rank()};

 private:
  static OffloadPlan plan_in(const std::string& folder, PlanOptions options, const std::vector<Range>& own = {})
  {
    options.folder = folder;
    OffloadPlan plan = make_plan(options);
    if (own.empty()) return plan;
    plan.own = own;
    plan.blocks = ShardBlocks(own, {});
    return plan;
  }
};

/// Bytes over all links since @p before.
inline LinkBytes moved(TieredRank& rank, const LinkBytes& before)
{
  LinkBytes bytes = rank.tiers.links().use().bytes;
  for (std::size_t link = 0; link < link_count; ++link) bytes[link] -= before[link];
  return bytes;
}

}  // namespace rankwise::testing
