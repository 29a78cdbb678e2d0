#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/program/options.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/training_options.hpp"
#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/step_plan.hpp"

/// @file
/// FSDP units, which are gathered and freed as a whole, and the plan that says when.

namespace rankwise {

/// Parameters that are gathered and freed together; their gradients are one bucket.
using FsdpUnit = Bucket;

/// `--unit`: which units of the parameter table make an FSDP unit.
enum class UnitKind : std::uint8_t {
  block,   ///< the two branches of a block; embedding and head each by itself
  branch,  ///< each unit of the table by itself
  model,   ///< all units of the table
};

/// `--reshard`: when units that were gathered for the forward pass are freed.
enum class Reshard : std::uint8_t {
  after_forward,   ///< after each use; the backward pass gathers them again
  after_backward,  ///< after their last use, in the backward pass
  never,           ///< units stay whole, as in ZeRO-2: they are gathered once, after the update (lesson 13)
};

/// Options of FSDP units.
struct GatherOptions {
  UnitKind unit = UnitKind::block;           ///< size of an FSDP unit
  std::int64_t prefetch = 1;                 ///< K: gathers start this many places ahead of the use
  Reshard reshard = Reshard::after_forward;  ///< when units are freed
  std::int64_t persist = 0;                  ///< tensors of at most this many elements are replicated
};

/// Declares all of them.
void declare(OptionTable& table, GatherOptions& options);

/// Cuts a table into FSDP units, in the order in which a backward pass completes them. Replicated tensors follow as
/// a last entry, without units of the table. Fully replicated units are omitted.
///
///     nano, blocks                    [head] [block 3] [block 2] [block 1] [block 0] [embedding]
///     blocks, with replicated tensors [block 3] [block 2] [block 1] [block 0] [embedding] [replicated]
///
/// @param table  the parameters.
/// @param unit   size of an FSDP unit.
std::vector<FsdpUnit> make_fsdp_units(const ParameterTable& table, UnitKind unit);

/// Units of the table whose parameters one computation reads: one, or two for tied tensors.
using Use = std::vector<std::int64_t>;

/// Uses of a micro-batch, in order: the units of the table from the embedding to the head, whose matrix is the
/// embedding's. In training the branches follow, last first; with recomputation each block's forward pass comes
/// before its backward pass.
std::vector<Use> uses_of(const TrainingOptions& options, bool training);

/// One place of a gather plan. FSDP units are given by their index in make_fsdp_units().
struct GatherStep {
  std::vector<std::size_t> needs;    ///< units that the computation reads
  std::vector<std::size_t> frees;    ///< units that are freed first
  std::vector<std::size_t> gathers;  ///< units whose gathers start then, in the order of their use
};

/// When each FSDP unit is gathered and freed in a micro-batch. Consecutive uses of the same units are one place. At
/// place s the units that the places s .. s + K need are gathered, and no others; with Reshard::after_backward also
/// those that were gathered before and are needed later. With Reshard::never no place gathers or frees any.
///
///     K = 1     use       0  1  2  3
///               gathers  0 1 2  3  .
///               frees     .  0  1  2       at the end: 3
///
/// @param units    of make_fsdp_units(). Replicated tensors are never gathered.
/// @param uses     of a micro-batch, in order.
/// @param options  prefetch distance K, and when units are freed.
/// @source  Zhao et al. 2023 (PyTorch FSDP), sections 3.2 and 3.3.
std::vector<GatherStep> plan_gathers(const std::vector<FsdpUnit>& units, const std::vector<Use>& uses,
                                     const GatherOptions& options);

/// Place of each use in plan_gathers(). A use that needs the same units as the one before has the same place.
std::vector<std::size_t> places_of(const std::vector<FsdpUnit>& units, const std::vector<Use>& uses);

/// Number of elements that every rank stores whole between steps: those of the replicated tensors, and with
/// Reshard::never those of all units.
/// @param gathers  of a micro-batch.
std::int64_t whole_elements(const StepPlan& plan, const std::vector<GatherStep>& gathers);

/// Bytes of parameters that a rank stores between steps: its shards, and whole_elements().
/// @param gathers  of a micro-batch.
std::int64_t kept_bytes(const StepPlan& plan, const std::vector<GatherStep>& gathers, RankOf rank);

/// True if a unit is whole between steps, and gathered after the update: no place of a micro-batch gathers it.
bool stays_whole(const std::vector<GatherStep>& gathers, std::size_t unit);

/// Peak bytes of gathered units.
/// @param plan     whose buckets are the FSDP units.
/// @param gathers  of a micro-batch.
std::int64_t gathered_bytes(const StepPlan& plan, const std::vector<GatherStep>& gathers);

/// The collectives of a step: gradients and gathered parameters of each micro-batch, and after the update the
/// parameters that stay whole.
/// @param plan     whose buckets are the FSDP units.
/// @param gathers  of one micro-batch.
std::vector<CollectiveShape> collectives_of(const StepPlan& plan, const std::vector<GatherStep>& gathers,
                                            std::int64_t ranks);

/// A paragraph for people: replicated parameters, elements gathered per micro-batch, and the picture of the plan.
std::string describe_units(const StepPlan& plan, const std::vector<GatherStep>& gathers);

/// Refuses a prefetch distance or a limit of replicated tensors that is out of range.
/// @param options  as parsed.
/// @param uses     of a micro-batch.
/// @throws UserError.
void check_gathers(const GatherOptions& options, const std::vector<Use>& uses);

/// A plan as a picture: a line per unit, the embedding on top, and a column per place. `g`: the gather starts, `U`:
/// the unit is used, `G`: both, `-`: it stays gathered.
std::string picture(const std::vector<FsdpUnit>& units, const std::vector<GatherStep>& plan);

}  // namespace rankwise
