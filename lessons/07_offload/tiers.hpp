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
#include "gpt2/arithmetic.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "lessons/07_offload/block_file.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/capacity.hpp"
#include "lessons/07_offload/transfer_queue.hpp"

/// @file
/// The memory tiers of a rank (device, host, disk) and the links between them.

namespace rankwise {

/// A place to compute: the device or the host.
struct ComputePlace {
  const Kernels& kernels;  ///< of the device or of the host
  Stream& stream;          ///< on which they run
};

/// The device and the host as places to compute.
struct Places {
  /// @param memory      of the device.
  /// @param on_device   kernels and stream of the device; outlives this, as does @p memory.
  /// @param arithmetic  of the host's kernels.
  Places(const DeviceMemory& memory, const ComputePlace& on_device, const Arithmetic& arithmetic);

  /// Place of a tier.
  /// @param tier  device or host.
  const ComputePlace& in(Tier tier) const { return tier == Tier::device ? device : host; }

  DeviceMemory host_memory;               ///< host memory that the device can reach
  std::unique_ptr<Stream> host_stream;    ///< stream of the host
  std::unique_ptr<Kernels> host_kernels;  ///< kernels on that stream
  ComputePlace device;                    ///< kernels and stream of the device
  ComputePlace host;                      ///< kernels and stream of the host
};

/// Use of the links.
struct LinkUse {
  LinkBytes bytes{};                        ///< by link
  std::array<double, link_count> busy_s{};  ///< busy time by link
  double waited_s = 0;                      ///< time that this rank waited for blocks

  /// The sum of two.
  LinkUse& operator+=(const LinkUse& other);
  /// Use since @p before.
  LinkUse since(const LinkUse& before) const;
};

/// Use of the links in the steps of a run.
struct StepLinks {
  std::int64_t count = 0;  ///< steps
  double seconds = 0;      ///< duration of all steps
  LinkUse links{};         ///< in all steps
};

/// Counts the use of the links. Several threads may call it at the same time.
class LinkLedger {
 public:
  /// Moves bytes over a link and counts them.
  /// @param move  moves them; returns when they have arrived.
  template <class Move>
  void count(TierLink link, std::int64_t bytes, Move&& move)
  {
    const Stopwatch clock;
    move();
    add(link, bytes, clock.seconds());
  }
  /// Counts waiting time.
  void add_waiting(double seconds);
  /// Use so far.
  LinkUse use() const;

 private:
  void add(TierLink link, std::int64_t bytes, double seconds);

  mutable std::mutex mutex_;
  LinkUse use_;
};

/// Blocks of a vector in the tier where they are stored.
class BlockStore {
 public:
  virtual ~BlockStore() = default;
  /// Tier where the blocks are stored.
  virtual Tier home() const = 0;
  /// A block at home, (its elements); Error on disk.
  virtual Tensor in_place(std::size_t block) const = 0;
  /// Starts to fetch a block; @p to holds it when the transfer is over.
  /// @param to    (its elements); earlier work of the device may still use it. On the host, a tensor of a
  ///              BlockBuffer.
  /// @param used  tier of @p to, device or host, which is not home().
  virtual BlockTransfer fetch(std::size_t block, const Tensor& to, Tier used) = 0;
  /// Starts to store a block after earlier work of the device has finished with it; otherwise as fetch().
  virtual BlockTransfer store(std::size_t block, const Tensor& from, Tier used) = 0;
};

/// A rank's memory tiers and the threads that move blocks between them.
///
/// With a GPU the host's memory is pinned, and copies run on streams of their own beside the computation. With a
/// CPU both tiers are host memory, and the device is a ledger with a limit.
class Tiers {
 public:
  /// Creates the file with all blocks on disk, if there are any, and reserves its space. All references outlive
  /// this.
  /// @param plan     tier of each state.
  /// @param device   memory of the device.
  /// @param compute  stream that computes on the device.
  /// @param host     host memory that the device can reach.
  /// @param time     ledger of this rank, where waiting counts as exposed; the threads that move blocks have their
  ///                 own.
  /// @param rank     of the job.
  /// @throws Error   when memory or disk do not suffice.
  Tiers(const OffloadPlan& plan, const DeviceMemory& device, Stream& compute, const DeviceMemory& host,
        TimeLedger& time, int rank);
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  /// Memory of the device or of the host.
  const DeviceMemory& memory(Tier tier) const { return tier == Tier::device ? device_ : host_; }
  /// The elements of the blocks.
  const ShardBlocks& blocks() const { return plan_.blocks; }

  /// Creates a vector on the host or on disk; its contents are undefined.
  /// @param what  its name in messages.
  std::unique_ptr<BlockStore> make_store(Tier tier, Category category, DType type, const std::string& what,
                                         bool tied = false);
  /// A store over existing tensors, which it does not own.
  /// @param tier           device or host.
  /// @param bucket_shards  one tensor per shard of the plan.
  std::unique_ptr<BlockStore> lend(Tier tier, const std::vector<Tensor>& bucket_shards);

  /// Number of slots for a walk over a vector.
  std::size_t window(Tier home, Tier used) const { return static_cast<std::size_t>(plan_.window(home, used)); }
  /// Creates a slot that fits any block of the plan. For blocks of a disk it has the size and alignment of a disk
  /// block, so that the disk reads straight into it.
  /// @param home, used  tier where blocks are stored, and tier of the slot.
  BlockBuffer make_slot(Tier home, Tier used, DType type, const std::string& what) const;

  /// Waits for a transfer, and counts the time as exposed.
  void wait(BlockTransfer& transfer);
  /// Ledger of the links.
  LinkLedger& links() { return links_; }
  /// Bandwidth of the disk by itself, as of measure_disk(); nothing without a disk.
  std::optional<double> disk_alone() const { return disk_alone_; }
  /// Measures the disk, if there is one, before any block is stored. All ranks make this call together: they share
  /// it.
  void measure();
  /// Ends the use of the file; a kept file is complete then.
  void close();

  /// Begins to count a step of the run.
  void begin_step();
  /// Ends the step: waits for the device, and counts what went over the links.
  void end_step();
  /// Steps counted so far.
  const StepLinks& steps() const { return steps_; }

 private:
  friend class StoreInMemory;
  friend class StoreOnDisk;

  /// The file, its link and the buffers in between.
  struct Disk;

  /// Copies after @p ready, a point of the device's work, and counts the bytes.
  void copy_over(Stream& stream, TierLink link, const Tensor& to, const Tensor& from, const Event& ready);

  OffloadPlan plan_;
  DeviceMemory device_, host_;
  Stream& compute_;
  TimeLedger& time_;
  LinkLedger links_;
  std::unique_ptr<Stream> in_, out_;  // of the device, one per copying thread
  std::int64_t next_number_ = 0;      // of blocks in host memory
  std::unique_ptr<Disk> disk_;
  std::optional<double> disk_alone_;
  LinkUse before_step_;
  Stopwatch step_clock_;
  StepLinks steps_;
  TransferQueue queue_;  // between host and device; last, because it uses all of the above
};

}  // namespace rankwise
