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
#include "lessons/07_offload/block_buffer.hpp"
#include "lessons/07_offload/block_file.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/offload_directory.hpp"
#include "lessons/07_offload/transfer_queue.hpp"

/// @file
/// The memories of a rank, device, host and disk, and the links between them.

namespace rankwise {

/// Where something is computed.
struct ComputePlace {
  const Kernels& kernels;  ///< of the device, or of the host
  Stream& stream;          ///< on which they work
};

/// The device and the host as places.
struct Places {
  /// @param memory      of the device.
  /// @param on_device   what computes there; with @p memory outlives this.
  /// @param arithmetic  of the kernels of the host.
  Places(const DeviceMemory& memory, const ComputePlace& on_device, const Arithmetic& arithmetic);

  /// One of them.
  /// @param tier  device or host.
  const ComputePlace& in(Tier tier) const { return tier == Tier::device ? device : host; }

  DeviceMemory host_memory;               ///< what the device reaches of it
  std::unique_ptr<Stream> host_stream;    ///< of the host
  std::unique_ptr<Kernels> host_kernels;  ///< on it
  ComputePlace device;                    ///< what computes there
  ComputePlace host;                      ///< what computes there
};

/// What went over the links.
struct LinkUse {
  LinkBytes bytes{};                        ///< by link
  std::array<double, link_count> busy_s{};  ///< that each link was busy with them
  double waited_s = 0;                      ///< that this rank has waited for blocks, with nothing else to do

  /// The sum of two.
  LinkUse& operator+=(const LinkUse& other);
  /// What came on top of @p before.
  LinkUse since(const LinkUse& before) const;
};

/// What went over the links in steps of a run.
struct StepLinks {
  std::int64_t count = 0;  ///< steps
  double seconds = 0;      ///< of all of them
  LinkUse links{};         ///< in all of them
};

/// Counts what goes over the links. Several threads do.
class LinkLedger {
 public:
  /// Moves bytes over a link and counts them.
  /// @param move  returns when they have arrived.
  template <class Move>
  void count(TierLink link, std::int64_t bytes, Move&& move)
  {
    const Stopwatch clock;
    move();
    add(link, bytes, clock.seconds());
  }
  /// Counts time that was spent on waiting.
  void add_waiting(double seconds);
  /// All so far.
  LinkUse use() const;

 private:
  void add(TierLink link, std::int64_t bytes, double seconds);

  mutable std::mutex mutex_;
  LinkUse use_;
};

/// A vector's blocks where they lie.
class BlockStore {
 public:
  virtual ~BlockStore() = default;
  /// Where that is.
  virtual Tier home() const = 0;
  /// A block there, (its elements); Error on disk.
  virtual Tensor in_place(std::size_t block) const = 0;
  /// Begins to bring a block; when the transfer is over @p to has it.
  /// @param to    (its elements); work that the device was given before may still use it. On the host, of a BlockSlot.
  /// @param used  where that lies, device or host: not where the block does.
  virtual BlockTransfer fetch(std::size_t block, const Tensor& to, Tier used) = 0;
  /// Begins to bring a block back, as work that the device was given before leaves it; otherwise as fetch().
  virtual BlockTransfer store(std::size_t block, const Tensor& from, Tier used) = 0;
};

/// Room for a block where it is used. On the host it is aligned, and as large, as the disk wants it: what is read goes
/// straight there.
class BlockSlot {
 public:
  BlockSlot() = default;  ///< none
  /// @param memory  where, counted as staging.
  /// @param bytes   of the largest block, or of a block on disk.
  /// @param type    of its elements.
  /// @param what    its name in messages.
  /// @throws Error  when there is no room.
  BlockSlot(const DeviceMemory& memory, std::int64_t bytes, DType type, const std::string& what)
      : memory_(memory, bytes, what), type_(type)
  {
  }
  /// Of @p elements elements.
  Tensor tensor(std::int64_t elements) const { return {memory_.bytes().data(), type_, {elements}}; }

 private:
  BlockBuffer memory_;
  DType type_ = DType::f32;
};

/// A rank's memories and the threads that move blocks between them.
///
/// On a GPU the host's memory is pinned, and copies go on streams of their own beside the work. On a CPU both are memory of
/// the host, and the device is a ledger with a limit.
class Tiers {
 public:
  /// @param plan     what lies where; the file with all blocks is made, and its space reserved.
  /// @param device   memory of the device.
  /// @param compute  the stream that computes there.
  /// @param host     memory of the host that the device reaches.
  /// @param time     where this rank's waiting is counted as exposed, and beside which the threads that move blocks have
  ///                 ledgers; outlives this, as all of the above.
  /// @param rank     of the job.
  /// @throws Error   when there is no room.
  Tiers(const OffloadPlan& plan, const DeviceMemory& device, Stream& compute, const DeviceMemory& host,
        TimeLedger& time, int rank);
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  /// Memory of the device or of the host.
  const DeviceMemory& memory(Tier tier) const { return tier == Tier::device ? device_ : host_; }
  /// The elements of the blocks.
  const ShardBlocks& blocks() const { return plan_.blocks; }

  /// A new vector on the host or on disk, of undefined content.
  /// @param what  its name in messages.
  std::unique_ptr<BlockStore> make_store(Tier tier, Category category, DType type, const std::string& what,
                                         bool tied = false);
  /// A vector that lies in memory already.
  /// @param tier      device or host.
  /// @param shards  its tensors, each of a shard of the plan; what they show is what the store has.
  std::unique_ptr<BlockStore> lend(Tier tier, const std::vector<Tensor>& bucket_shards);

  /// Blocks of a vector that there is room for where somebody walks over it.
  std::size_t window(Tier home, Tier used) const { return static_cast<std::size_t>(plan_.window(home, used)); }
  /// Room for any block of the plan.
  /// @param lies, used  where blocks come from, and where the room is.
  BlockSlot make_slot(Tier home, Tier used, DType type, const std::string& what) const;

  /// Waits, and counts the time as exposed.
  void wait(BlockTransfer& transfer);
  /// What went over the links.
  LinkLedger& links() { return links_; }
  /// What the disk does by itself; nothing without one.
  const std::optional<DiskBandwidth>& disk_alone() const { return disk_alone_; }
  /// Measures the disk, if there is one, before anything is stored; all ranks at the same time, since they share it.
  void measure();
  /// Ends the use of the file: one that stays is complete.
  void close();

  /// A step of the run begins.
  void begin_step();
  /// That step has ended, and the device has done all of it: what went over the links meanwhile is counted.
  void end_step();
  /// The steps so far.
  const StepLinks& steps() const { return steps_; }

 private:
  friend class StoreInMemory;
  friend class StoreOnDisk;

  /// The file, its link and the memory in between.
  struct Disk;

  /// Copies, behind the work up to a point of the device, and counts.
  void copy_over(Stream& stream, TierLink link, const Tensor& to, const Tensor& from, const Event& ready);

  OffloadPlan plan_;
  DeviceMemory device_, host_;
  Stream& compute_;
  TimeLedger& time_;
  LinkLedger links_;
  std::unique_ptr<Stream> in_, out_;  // of the device; one for each thread that copies
  std::int64_t next_number_ = 0;      // of blocks in memory
  std::unique_ptr<Disk> disk_;
  std::optional<DiskBandwidth> disk_alone_;
  LinkUse before_step_;
  Stopwatch step_clock_;
  StepLinks steps_;
  TransferQueue queue_;  // between host and device; last: it uses all of the above
};

}  // namespace rankwise
