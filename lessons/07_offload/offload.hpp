#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/memory/memory_ledger.hpp"
#include "common/program/options.hpp"
#include "common/program/session.hpp"
#include "gpt2/arithmetic.hpp"
#include "lessons/04_zero1/step_plan.hpp"
#include "lessons/06_zero3/fsdp_units.hpp"
#include "lessons/07_offload/shard_blocks.hpp"

/// @file
/// What lies where, and what that costs: bytes in each tier, bytes over each link, from the sizes alone.

namespace rankwise {

/// `--offload`: which part of the model state leaves the device.
enum class Offload : std::uint8_t {
  optimizer,   ///< moments and master weights; AdamW runs on the host
  gradients,   ///< sums of gradients, which are added up on the host
  parameters,  ///< what a rank keeps of them; units come when a pass uses them
  all,         ///< all of that
};

/// Where to, and whether it stays.
struct OffloadOptions {
  Offload what = Offload::all;  ///< what leaves the device
  std::string tier = "host";    ///< host, or disk:DIR
  bool keep = false;            ///< the files in DIR stay at the end

  /// DIR; empty for the host.
  std::string directory() const;
  /// Where that lies.
  /// @param category  parameters, gradients or optimizer.
  Tier tier_of(Category category) const;
};

/// Declares all of them.
void declare(OptionTable& table, OffloadOptions& options);
/// Refuses what is no tier.
/// @throws UserError.
void check_tier(const OffloadOptions& options);

/// The links between the tiers. Each goes one way.
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

/// What decides where everything lies and what comes and goes.
struct OffloadPlan {
  OffloadOptions options;           ///< what leaves the device
  StepPlan step;                    ///< units, types, batch
  std::vector<GatherStep> gathers;  ///< of a pass
  std::int64_t ranks = 1;           ///< N
  std::vector<Range> own;           ///< this rank's shard of each unit
  ShardBlocks blocks;               ///< of these
  bool clips = true;                ///< whether an update waits for the norm of all gradients

  /// @param rank   r of N.
  /// @param clips  whether gradients are clipped (`--clip`).
  OffloadPlan(const OffloadOptions& options, const StepPlan& step, std::vector<GatherStep> gathers, RankOf rank,
              bool clips = true);

  /// Where that lies.
  Tier tier_of(Category category) const { return options.tier_of(category); }
  /// Where AdamW runs: where its states are, or if those are on disk, on the host.
  Tier updated_in() const { return tier_of(Category::optimizer) == Tier::device ? Tier::device : Tier::host; }
  /// Whether each block is updated as soon as its sum of gradients is whole, in the last backward pass of a step: all it
  /// needs is off the device, and nothing waits for the norm of all gradients.
  bool updates_early() const { return options.what == Offload::all && !clips; }
  /// Whether there are master weights: of bf16, or where AdamW cannot reach the parameters that the device keeps.
  bool has_master() const;
  /// Passes of a step, M.
  std::int64_t micro_batches() const { return sums_of_step(step, ranks); }
  /// How many sums of gradients wait for their neighbours at most: log2(M) + 1 in a binary tree, else one.
  std::int64_t levels() const;
  /// How many vectors of sums lie off the device between passes, and for the update if it comes later: the levels; but
  /// for the highest one of them, if it would have only what an early update has used already.
  std::int64_t kept_sums() const;
  /// How many shards of gradients there is room for on the host: none, one, or two where they are written to a disk.
  std::int64_t landings() const;
  /// Blocks of gradients that there is room for on the host, where they come to from the device: those of a shard; with a
  /// disk behind it of two, since one comes while the one before is written. None where gradients stay on the device.
  std::int64_t landing_blocks() const;
  /// The same, of the second gradients of a tied tensor.
  std::int64_t tied_landing_blocks() const;
  /// How many blocks of a vector there is room for where somebody walks over it: one comes, one is used, one goes. Between
  /// a disk, which has to go on while nobody asks, and the host about a shard comes and one goes; in at most 32 MiB.
  std::int64_t window(Tier home, Tier used) const;
  /// Bytes of room for a block where it is used.
  /// @param lies, used  where it comes from, and where the room is.
  std::int64_t slot_bytes(Tier home, Tier used, DType type) const;
  /// Bytes of a block on disk: the largest, in whole pieces of disk_alignment.
  std::int64_t disk_block_bytes() const;
};

/// A vector of a rank's elements, in blocks; and how often each of them goes from where it lies to where it is used, and
/// back. Two uses of one vector are two of these.
struct VectorPlan {
  std::string what;          ///< for people
  Category category{};       ///< as what its memory is counted
  DType type = DType::f32;   ///< of its elements
  bool tied = false;         ///< of the tied tensor's elements only
  Tier home{};               ///< where it lies
  Tier used{};               ///< where it is used
  std::int64_t copies = 0;   ///< of the vector: 0 where its memory is counted with another use, or is the device's
  std::int64_t slots = 0;    ///< blocks that there is room for where it is used
  std::int64_t fetched = 0;  ///< times a step
  std::int64_t stored = 0;   ///< times a step
};

/// All vectors of a rank, but for what comes for each unit of a pass.
std::vector<VectorPlan> vectors_of(const OffloadPlan& plan);

/// Blocks of all vectors on disk.
std::int64_t disk_blocks(const OffloadPlan& plan);
/// Bytes by tier and category that the vectors take, with the room for blocks where they are used.
TierBytes tier_bytes(const OffloadPlan& plan);
/// The same with all model state that is kept from step to step on the device.
/// @param arithmetic  how sums are made.
/// @param rank        that of the plan.
TierBytes state_bytes(const OffloadPlan& plan, const Arithmetic& arithmetic, RankOf rank);
/// Bytes over each link in one step.
LinkBytes link_traffic(const OffloadPlan& plan);

}  // namespace rankwise
