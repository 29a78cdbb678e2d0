#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "common/program/time_ledger.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "lessons/parallel/offload/block_file.hpp"
#include "lessons/parallel/offload/capacity.hpp"
#include "lessons/parallel/offload/offload.hpp"
#include "lessons/parallel/offload/transfer_queue.hpp"

/// @file
/// The memory tiers of a rank (device, host, disk) and the links between them.

namespace rankwise {

/// A place to compute: the device or the host.
struct ComputePlace {
  DeviceMemory memory;     ///< the device's, or the host's where the device can reach it
  Stream& stream;          ///< the device's or the host's
  const Kernels& kernels;  ///< on that stream
};

/// Use of the links in the steps of a run.
struct LinkUse {
  std::int64_t steps = 0;                   ///< number of steps
  double seconds = 0;                       ///< duration of all steps
  LinkBytes bytes{};                        ///< by link
  std::array<double, link_count> busy_s{};  ///< busy time by link
  double waited_s = 0;                      ///< time that this rank waited for blocks
};

/// Counts the use of the links in steps, and nothing between them. Several threads may call it at the same time.
class LinkLedger {
 public:
  /// Begins a step.
  void begin_step();
  /// Ends the step.
  void end_step();
  /// Moves bytes over a link and counts them.
  /// @param move  moves them; returns when they have arrived.
  template <class Move>
  void count(TierLink link, std::int64_t bytes, Move&& move)
  {
    const Stopwatch clock;
    move();
    const std::scoped_lock lock(mutex_);
    if (!in_step_) return;
    use_.bytes[static_cast<std::size_t>(link)] += bytes;
    use_.busy_s[static_cast<std::size_t>(link)] += clock.seconds();
  }
  /// Counts waiting time.
  void add_waiting(double seconds);
  /// Use in all steps so far.
  LinkUse use() const;

 private:
  mutable std::mutex mutex_;
  bool in_step_ = false;
  Stopwatch step_clock_;
  LinkUse use_;
};

class Tiers;

/// Blocks of a vector in the tier where they are stored. Between disk and device they pass through buffers on the
/// host.
class BlockStore {
 public:
  /// A vector whose contents are undefined.
  /// @param tiers    moves the blocks; outlives this.
  /// @param what     its name in messages.
  /// @param tied     whether it has only the blocks of the tied tensor.
  /// @throws Error   when the memory does not suffice.
  BlockStore(Tiers& tiers, Tier home, Category category, DType type, const std::string& what, bool tied = false);
  /// A store over existing tensors on the device, which it does not own.
  /// @param bucket_shards  one tensor per shard of the plan.
  BlockStore(Tiers& tiers, const std::vector<Tensor>& bucket_shards);
  virtual ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  /// Tier where the blocks are stored.
  Tier home() const { return home_; }
  /// A block at home, (its elements); Error on disk.
  Tensor in_place(std::size_t block) const;
  /// Starts to fetch a block; @p to holds it when the transfer is over.
  /// @param to    (its elements); earlier work of the device may still use it. On the host, a tensor of a slot.
  /// @param used  tier of @p to, device or host, which is not home().
  virtual Pending fetch(std::size_t block, const Tensor& to, Tier used);
  /// Starts to store a block after earlier work of the device has finished with it; otherwise as fetch().
  virtual Pending store(std::size_t block, const Tensor& from, Tier used);

 private:
  Tiers& tiers_;
  Tier home_;
  Category category_ = Category::gradients;
  std::vector<std::int64_t> numbers_;  // each block's number on its link
  std::vector<Tensor> blocks_;         // in memory
  Buffer memory_;                      // owned memory
  std::int64_t disk_bytes_ = 0;
};

/// A rank's memory tiers and the threads that move blocks between them.
///
/// With a GPU the host's memory is pinned, and copies run on streams of their own beside the computation. With a
/// CPU both tiers are host memory, and the device is a ledger with a limit.
class Tiers {
 public:
  /// Creates the file with all blocks on disk, if there are any, and reserves its space. All references outlive
  /// this.
  /// @param plan          tier of each state.
  /// @param device, host  places to compute.
  /// @param time          ledger of this rank, where waiting counts as exposed; the threads that move blocks have
  ///                      their own.
  /// @param rank          of the job.
  /// @throws Error        when memory or disk do not suffice.
  Tiers(const OffloadPlan& plan, const ComputePlace& device, const ComputePlace& host, TimeLedger& time, int rank);
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  /// The device or the host.
  const ComputePlace& place(Tier tier) const { return tier == Tier::device ? device_ : host_; }
  /// The elements of the blocks.
  const ShardBlocks& blocks() const { return plan_.blocks; }

  /// Number of slots for a walk over a vector.
  std::size_t window(Tier home, Tier used) const { return static_cast<std::size_t>(plan_.window(home, used)); }
  /// Creates a slot that fits any block of the plan. For blocks of a disk it has the size and alignment of a disk
  /// block, so that the disk reads straight into it.
  /// @param home, used  tier where blocks are stored, and tier of the slot.
  BlockBuffer make_slot(Tier home, Tier used, DType type, const std::string& what) const;

  /// Waits for a transfer, and counts the time as exposed.
  void wait(Pending& transfer);
  /// Ledger of the links.
  LinkLedger& links() { return links_; }
  /// Bandwidth of the disk by itself, as measured by measure_disk(); nothing without a disk.
  std::optional<double> disk_alone() const { return disk_alone_; }
  /// Measures the disk, if there is one, before any block is stored. All ranks make this call together: they share
  /// it.
  void measure();
  /// Ends the use of the file; a kept file is complete then.
  void close();

 private:
  friend class BlockStore;

  /// The threads that move blocks between two tiers.
  struct Link {
    Link(Device& device, TimeLedger& time) : in(device.make_stream()), out(device.make_stream()), queue(time) {}
    std::unique_ptr<Stream> in, out;  // the device's, one for each thread
    std::int64_t next_number = 0;     // the next block's
    TransferQueue queue;
  };

  /// Copies after @p ready, a point of the device's work, and counts the bytes.
  /// @param used  tier of @p to.
  void copy_over(Stream& stream, Tier used, const Tensor& to, const Tensor& from, const Event& ready);

  OffloadPlan plan_;
  ComputePlace device_, host_;
  TimeLedger& time_;
  LinkLedger links_;
  std::optional<BlockFile> file_;
  BlockBuffer coming_, going_;  // between disk and device, each used by one thread
  std::optional<double> disk_alone_;
  Link memory_link_;               // between host and device; last, because the threads use all of the above
  std::optional<Link> disk_link_;  // from and to the file
};

}  // namespace rankwise
