#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/memory/memory_ledger.hpp"
#include "common/program/options.hpp"
#include "common/program/session.hpp"
#include "lessons/parallel/offload/shard_blocks.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"
#include "lessons/parallel/zero/step_plan.hpp"

/// @file
/// Where model state is stored, and its costs: bytes in each tier and over each link, computed from the sizes alone.

namespace rankwise {

/// `--offload`: which part of the model state leaves the device.
enum class Offload : std::uint8_t {
  none,        ///< nothing: lesson 06
  optimizer,   ///< moments and master weights; AdamW runs on the host
  gradients,   ///< sums of gradients, which are accumulated on the host
  parameters,  ///< a rank's shards, which are fetched when their unit is gathered
  all,         ///< all of these
};

/// Options of offloading.
struct OffloadOptions {
  Offload what = Offload::all;  ///< what leaves the device
  std::string tier = "host";    ///< host, or disk:DIR
  bool keep = false;            ///< keep the files in DIR after the run

  /// DIR; empty for the host.
  std::string directory() const;
  /// Tier where a category of model state is stored.
  /// @param category  parameters, gradients or optimizer.
  Tier tier_of(Category category) const;
};

/// Declares them.
void declare(OptionTable& table, OffloadOptions& options);
/// Refuses a tier that does not exist.
/// @throws UserError.
void check_tier(const OffloadOptions& options);

/// Links between the tiers, one per direction.
enum class TierLink : std::uint8_t {
  to_device,    ///< host to device
  from_device,  ///< device to host
  from_disk,    ///< disk to host
  to_disk,      ///< host to disk
};
/// Number of links.
constexpr int link_count = 4;
/// "host to device", "device to host", "disk to host" or "host to disk".
std::string_view name_of(TierLink link);
/// Bytes by link.
using LinkBytes = std::array<std::int64_t, link_count>;

/// Which state is stored where, and how it moves: everything that the formulas below need.
struct OffloadPlan {
  OffloadOptions options;           ///< what leaves the device
  StepPlan step;                    ///< units, types, batch
  std::vector<GatherStep> gathers;  ///< those of a micro-batch, in order
  std::int64_t ranks = 1;           ///< N
  std::vector<Range> own;           ///< this rank's shard of each unit
  ShardBlocks blocks;               ///< blocks of these shards
  bool clips = true;                ///< whether an update waits for the norm of all gradients
  std::vector<Range> counted;       ///< elements of own that this rank counts in the norm; by default all of them

  /// @param rank   r of N.
  /// @param clips  whether gradients are clipped (`--clip`).
  OffloadPlan(const OffloadOptions& options, const StepPlan& step, std::vector<GatherStep> gathers, RankOf rank,
              bool clips = true);

  /// Tier where a category of model state is stored.
  Tier tier_of(Category category) const { return options.tier_of(category); }
  /// Tier where AdamW runs: that of its states, or the host if they are on disk.
  Tier updated_in() const { return tier_of(Category::optimizer) == Tier::device ? Tier::device : Tier::host; }
  /// True if each block is updated as soon as its sum of gradients is complete, during the last backward pass of a
  /// step. That needs all state off the device, and no clipping, which waits for the norm of all gradients.
  bool updates_early() const { return options.what == Offload::all && !clips; }
  /// True if there are master weights: in bf16, or if AdamW runs on the host and the parameters stay on the device.
  bool has_master() const;
  /// Micro-batches of a step, M.
  std::int64_t micro_batches() const { return sums_of_step(step, ranks); }
  /// True if its sums are a tree over the sequences.
  bool adds_in_tree() const { return step.arithmetic.continues_tree(); }
  /// Terms that are added up in a step: micro-batches of all ranks together, or of each rank (adds_rank_by_rank()).
  std::int64_t terms_of_step() const { return separate_ranks(step, ranks) * micro_batches(); }
  /// The elements of a range that this rank counts in the norm, as ranges that are not empty.
  std::vector<Range> counted_in(Range elements) const;
  /// Largest number of partial sums of gradients at a time: log2 of terms_of_step() + 1 in a binary tree, else one.
  std::int64_t levels() const;
  /// The same without the last level if that has only the complete sum; it has others if terms_of_step() is no power of two.
  std::int64_t partial_levels() const;
  /// Vectors of sums stored off the device between micro-batches and until the update: one per level, but none for
  /// a level that would hold only complete sums, which an early update has used already.
  std::int64_t kept_sums() const;
  /// Landing buffers on the host for a shard of gradients from the device: none if gradients stay there, else one;
  /// two if sums are written to a disk, since one shard arrives while the previous one is written.
  std::int64_t landings() const;
  /// Blocks of a landing buffer: those of the largest shard.
  /// @param tied  whether it is that of the second gradients of a tied tensor.
  std::int64_t landing_blocks(bool tied) const;
  /// Slots for the blocks of a vector in a walk: one block is fetched, one is used, one is stored. From disk to
  /// host the slots hold about one shard to be fetched and one to be stored, at most 32 MiB, to keep the disk busy
  /// between uses.
  std::int64_t window(Tier home, Tier used) const;
  /// Bytes of a slot for one block.
  /// @param home, used  tier where the block is stored, and tier of the slot.
  std::int64_t slot_bytes(Tier home, Tier used, DType type) const;
  /// Bytes of a block on disk: the largest block in f32, rounded up to a multiple of disk_alignment.
  std::int64_t disk_block_bytes() const;
};

/// One use of a vector of a rank's elements, in blocks, and how often it moves between home and where it is used. A
/// vector with two uses has two of these.
struct VectorPlan {
  std::string what;          ///< for people
  Category category{};       ///< category of its memory
  DType type = DType::f32;   ///< type of its elements
  bool tied = false;         ///< only the tied tensor's elements
  Tier home{};               ///< tier where it is stored
  Tier used{};               ///< tier where it is used
  std::int64_t copies = 0;   ///< copies at home; 0 if another use, or the device, counts them
  std::int64_t slots = 0;    ///< slots for blocks where it is used
  std::int64_t fetched = 0;  ///< times per step
  std::int64_t stored = 0;   ///< times per step
};

/// All vectors of a rank, without the fetches for gathered units.
std::vector<VectorPlan> vectors_of(const OffloadPlan& plan);

/// Number of blocks of all vectors on disk.
std::int64_t disk_blocks(const OffloadPlan& plan);
/// Bytes of the vectors by tier and category, including the slots where they are used.
TierBytes tier_bytes(const OffloadPlan& plan);
/// Bytes over each link in one step.
LinkBytes link_traffic(const OffloadPlan& plan);

}  // namespace rankwise
