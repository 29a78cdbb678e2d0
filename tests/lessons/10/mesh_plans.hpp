#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "lessons/parallel/mesh/mesh_plan.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/one_machine.hpp"

/// @file
/// For tests of lesson 10: plans of a small model on a mesh.

namespace rankwise::testing {

/// Options of a plan.
struct MeshPlanOptions {
  ModelConfig config = tiny_config(8, 4, 16, 8);  ///< the model: blocks for two stages on each of four ranks
  std::int64_t B = 2;                             ///< sequences of a micro-batch
  std::int64_t passes = 4;                        ///< m, micro-batches of a replica
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;  ///< of the pipeline
  bool zero = true;                                                ///< whether replicas share out optimizer states
  Sums sums = Sums::fast;                                          ///< their order
  bool sequence_parallel = false;                                  ///< whether rows are divided
  DType type = DType::f32;                                         ///< of parameters and activations
  Algorithm algorithm = Algorithm::ring;                           ///< of collectives
  Topology job{};                                                  ///< of all ranks; empty: one machine
};

/// The plan of the rank at a place.
inline MeshPlan mesh_plan(const Layout& layout, const MeshCoordinates& place, const MeshPlanOptions& o = {})
{
  const Part part{place.tp, static_cast<int>(layout.tp)};
  const ActivationShape shape{
      .type = o.type, .B = o.B, .T = o.config.context, .part = part, .tokens = o.sequence_parallel ? part : Part{}};
  const PipelineOptions pipeline{o.schedule, 0, ""};
  const int p = static_cast<int>(layout.pp);
  return {layout,
          place,
          {o.config, shape, stage_units(pipeline, o.config, p, shape.T), make_schedule(pipeline, p, o.passes)},
          o.zero,
          DType::f32,
          Arithmetic(o.sums),
          o.algorithm,
          o.job.node_of.empty() ? one_machine(static_cast<int>(layout.dp * layout.tp * layout.pp)) : o.job,
          rank_at(axes_of(layout), {place.pp, place.dp, place.tp}),
          axes_of(layout),
          {{"dp", {place.dp, static_cast<int>(layout.dp)}}}};
}

/// Calls f with each place of a mesh.
inline void for_each_place(const Layout& layout, const std::function<void(const MeshCoordinates&)>& f)
{
  for (int pp = 0; pp < layout.pp; ++pp)
    for (int dp = 0; dp < layout.dp; ++dp)
      for (int tp = 0; tp < layout.tp; ++tp) f({.dp = dp, .tp = tp, .pp = pp});
}

/// A mesh, and options that suit it.
struct MeshCase {
  Layout layout;            ///< the degrees
  MeshPlanOptions options;  ///< of each rank's plan
};

/// Meshes of up to 8 ranks and some of three, with and without shared optimizer states, with one stage a rank and with two.
inline std::vector<MeshCase> mesh_cases()
{
  std::vector<MeshCase> cases;
  const auto add = [&cases](const Layout& layout, const ModelConfig& config) {
    for (const bool zero : {false, true})
      for (const ScheduleKind schedule : {ScheduleKind::one_forward_one_backward, ScheduleKind::interleaved}) {
        if (schedule == ScheduleKind::interleaved && layout.pp == 1) continue;
        const std::int64_t passes = 4 * layout.pp;
        cases.push_back({layout, {.config = config, .passes = passes, .schedule = schedule, .zero = zero}});
      }
  };
  for (const std::int64_t dp : {1, 2, 4})
    for (const std::int64_t tp : {1, 2, 4})
      for (const std::int64_t pp : {1, 2, 4})
        if (dp * tp * pp <= 8) add({dp, tp, pp}, MeshPlanOptions{}.config);
  add({3, 1, 2}, MeshPlanOptions{}.config);
  add({1, 3, 2}, tiny_config(4, 3, 12, 8));  // a vocabulary of 16 in three parts: 18 rows are stored
  add({2, 2, 3}, tiny_config(6, 2, 8, 8));
  return cases;
}

/// Name of the case, for messages of failures.
inline std::string describe(const MeshCase& c)
{
  return "dp " + std::to_string(c.layout.dp) + " tp " + std::to_string(c.layout.tp) + " pp " +
         std::to_string(c.layout.pp) + (c.options.zero ? " zero" : "") +
         (c.options.schedule == ScheduleKind::interleaved ? " interleaved" : "");
}

}  // namespace rankwise::testing
