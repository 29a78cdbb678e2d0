#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/program/options.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/training_options.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/04_zero1/step_plan.hpp"

/// @file
/// Units: parameters that are gathered and freed together.

namespace rankwise {

/// Parameters that are gathered and freed together; their gradients are one bucket.
using FsdpUnit = Bucket;

/// `--unit`: what an FSDP unit is.
enum class UnitKind : std::uint8_t {
  block,   ///< two neighbours of the table's units; the first and the last one by themselves
  branch,  ///< each of the table's units by itself
  model,   ///< all of them
};

/// `--reshard`: when parameters that were gathered for the forward pass are freed.
enum class Reshard : std::uint8_t {
  after_forward,   ///< after each use; the backward pass gathers them again
  after_backward,  ///< when the pass does not come back to them
};

/// What is gathered, and when.
struct GatherOptions {
  UnitKind unit = UnitKind::block;           ///< together
  std::int64_t prefetch = 1;                 ///< K: how many places ahead units are gathered
  Reshard reshard = Reshard::after_forward;  ///< when they are freed
  std::int64_t persist = 0;                  ///< tensors of at most so many elements stay on every rank
};

/// Declares all of them.
void declare(OptionTable& table, GatherOptions& options);

/// Cuts a table into units that are gathered together, in the order in which a backward pass is done with them. Tensors
/// that are replicated stay on every rank: they are the last unit, without units of the table. Where all tensors of a unit lie
/// apart there is no unit.
///
///     nano, blocks                    [head] [block 3] [block 2] [block 1] [block 0] [embedding]
///     blocks, with replicated tensors      [block 3] [block 2] [block 1] [block 0] [embedding] [what is replicated]
///
/// @param table  the parameters.
/// @param unit   what is gathered together.
std::vector<FsdpUnit> make_fsdp_units(const ParameterTable& table, UnitKind unit);

/// What a pass computes with at one place: units of the table, one or, for tied tensors, more.
using Use = std::vector<std::int64_t>;

/// What a pass uses, in order: the units of the table from the embedding to the head, whose matrix is the embedding's; in
/// training then the branches, last first, and where blocks are recomputed their units once more.
std::vector<Use> uses_of(const TrainingOptions& options, bool training);

/// What one place of a pass needs, and what is done before it is used. Units are given by their number in make_fsdp_units().
struct GatherStep {
  std::vector<std::size_t> needs;    ///< what the place computes with
  std::vector<std::size_t> frees;    ///< what is given back first
  std::vector<std::size_t> gathers;  ///< what is then begun to be gathered, in the order in which it is needed
};

/// When each unit is gathered and freed in a pass. At place s there is what the places s .. s + K need, and nothing else;
/// with Reshard::after_backward also what was gathered before and is needed later. Places that follow each other and need
/// the same are one.
///
///     K = 1     use       0  1  2  3
///               gathers  0 1 2  3  .
///               frees     .  0  1  2       at the end: 3
///
/// @param units    of make_fsdp_units(); what is replicated is always there, and nobody gathers it.
/// @param uses     of a pass, in order.
/// @param options  how far ahead, and when they are freed.
/// @source  Zhao et al. 2023 (PyTorch FSDP), sections 3.2 and 3.3.
std::vector<GatherStep> plan_gathers(const std::vector<FsdpUnit>& units, const std::vector<Use>& uses,
                                     const GatherOptions& options);

/// The place of each use in plan_gathers(): those that need the same as the one before them have its place.
std::vector<std::size_t> places_of(const std::vector<FsdpUnit>& units, const std::vector<Use>& uses);

/// The bytes of parameters that a rank keeps from step to step: its shards, and whole what is replicated.
std::int64_t kept_bytes(const StepPlan& plan, RankOf rank);

/// The most bytes that are gathered at a time.
/// @param plan     of the units.
/// @param gathers  of a pass.
std::int64_t gathered_bytes(const StepPlan& plan, const std::vector<GatherStep>& gathers);

/// What one rank sends in one step: of gradients after each pass, of parameters in each pass as they are gathered, and after
/// the update of those that are replicated.
/// @param plan     of the units.
/// @param gathers  of one pass.
Traffic step_traffic(const StepPlan& plan, const std::vector<GatherStep>& gathers, const Topology& topology,
                     int rank);

/// What stays, how much is gathered in a pass, and the picture of it: a paragraph for people.
std::string describe_units(const StepPlan& plan, const std::vector<GatherStep>& gathers);

/// Refuses what cannot be gathered.
/// @param options  as parsed.
/// @param uses     of a pass.
/// @throws UserError.
void check_gathers(const GatherOptions& options, const std::vector<Use>& uses);

/// A plan as a picture: a line a unit, the first one on top, a column a place. `g` begins to be gathered, `U` is used, `G`
/// is gathered and used at once, `-` is there.
std::string picture(const std::vector<FsdpUnit>& units, const std::vector<GatherStep>& plan);

}  // namespace rankwise
