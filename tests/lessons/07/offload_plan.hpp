#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpt2/arithmetic.hpp"
#include "lessons/parallel/offload/offload.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/world.hpp"

/// @file
/// For tests of what is offloaded: plans of a small model.

namespace rankwise::testing {

/// Options of a plan.
struct PlanOptions {
  Offload what = Offload::all;                    ///< what leaves the device
  Tier tier = Tier::host;                         ///< where to: host or disk
  std::int64_t micro_batches = 1;                 ///< M
  bool exact = false;                             ///< whether sums are a tree over the sequences
  DType parameters = DType::f32;                  ///< their type
  DType gradients = DType::f32;                   ///< their type
  std::int64_t persist = 0;                       ///< tensors of at most this many elements are replicated
  ModelConfig config = tiny_config(2, 4, 32, 6);  ///< units: 704, then (4,288, 8,416) twice, 64
  std::string folder = "nowhere";                 ///< of the disk
  bool clips = true;                              ///< whether gradients are clipped
};

/// The uses of a training micro-batch.
inline std::vector<Use> uses_of_pass(const ModelConfig& config)
{
  const std::int64_t head = unit_count(config) - 1;
  std::vector<Use> uses;
  for (std::int64_t unit = 0; unit < head; ++unit) uses.push_back({unit});
  uses.push_back({head, 0});
  for (std::int64_t unit = head - 1; unit > 0; --unit) uses.push_back({unit});
  return uses;
}

/// The units, branch by branch, and the batch of a step: a sequence a rank and pass.
inline StepPlan step_plan(const PlanOptions& o, std::int64_t ranks)
{
  const ParameterTable table(o.config, {}, {0, -1}, o.persist);
  return {table,
          make_fsdp_units(table, UnitKind::branch),
          o.gradients,
          o.parameters,
          Arithmetic(o.exact ? Sums::exact : Sums::fast),
          Algorithm::ring,
          o.micro_batches * ranks,
          1};
}

/// The plan of this rank; units are gathered when they are used.
inline OffloadPlan make_plan(const PlanOptions& o)
{
  const StepPlan step = step_plan(o, world().ranks());
  const OffloadOptions offload{o.what, o.tier == Tier::disk ? "disk:" + o.folder : "host", false};
  const GatherOptions gathering{.unit = UnitKind::branch, .prefetch = 0, .persist = o.persist};
  return {offload, step, plan_gathers(step.buckets, uses_of_pass(o.config), gathering), world(), o.clips};
}

/// "--offload=gradients" and the like.
inline std::string name_of(Offload what)
{
  switch (what) {
    case Offload::none:
      return "none";
    case Offload::optimizer:
      return "optimizer";
    case Offload::gradients:
      return "gradients";
    case Offload::parameters:
      return "parameters";
    case Offload::all:
      return "all";
  }
  return "";
}

/// All of them.
constexpr std::array<Offload, 4> all_offloads{Offload::optimizer, Offload::gradients, Offload::parameters,
                                              Offload::all};

/// Description of a plan, for messages of failures.
inline std::string text_of(const PlanOptions& o)
{
  return "--offload=" + name_of(o.what) + " --tier=" + std::string(name_of(o.tier)) +
         ", M = " + std::to_string(o.micro_batches) + (o.exact ? ", tied apart" : "") + ", parameters " +
         (o.parameters == DType::f32 ? "f32" : "bf16") + ", gradients " +
         (o.gradients == DType::f32 ? "f32" : "bf16") + ", persist " + std::to_string(o.persist) +
         ", C = " + std::to_string(o.config.channels) + (o.clips ? "" : ", --clip=0");
}

}  // namespace rankwise::testing
