#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/memory/memory_ledger.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/mesh.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/gradient_sum.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// Memory and traffic of a run, computed from the sizes alone.

namespace rankwise {

/// Traffic of one rank along one axis of the ranks.
struct SentPerStep {
  std::string axis;     ///< name of the group: "world", or "dp", "tp", "pp"
  std::string what;     ///< label in the report, as "a step"
  Traffic traffic;      ///< messages and bytes that this rank sends
  std::string formula;  ///< the formula as text, for the report
};

/// Memory and traffic of rank r of N. `costs.hpp` of each lesson computes them from the options, r and N, without
/// starting N ranks.
struct Costs {
  TierBytes kept{};               ///< bytes at the end of a step, by tier and category
  TierBytes most{};               ///< peak bytes within a step, by tier and category
  std::vector<SentPerStep> sent;  ///< traffic of one step, by axis
};

/// Costs of a rank that stores everything on its device, and needs no more within a step than at its end.
/// @param sent  traffic of one step, by axis.
Costs costs_on_device(const CategoryBytes& kept, std::vector<SentPerStep> sent);

/// Device memory of a rank without sharding and without message buffers: model state of all layers, and
/// activations.
CategoryBytes unsharded_bytes(const LessonOptions& options, const Division& division);

/// The ranks along an axis of a lesson's mesh through a rank, and their nodes.
/// @param options  whose axes(N) are the mesh's.
template <class Options>
Topology topology_along(const Options& options, RankOf rank, const std::string& axis)
{
  return options.topology(rank.ranks).among(line_of(options.axes(rank.ranks), rank.rank, axis));
}

/// Bytes of a rank's message buffers: scratch for collectives of all ranks, @p calls and the sum of losses, and
/// copies of values on the host.
std::int64_t message_bytes(const LessonOptions& options, std::vector<CollectiveShape> calls, RankOf rank);

/// The all-reduces of a step's gradients: of all of them, and where the arithmetic keeps the tied embedding's second
/// contribution as a separate sum (GradientSum::sums()), of that one.
/// @param leaves  of the sums, LessonOptions::leaves() for PartialSum; 0 for sums that are whole on each rank.
std::vector<CollectiveShape> gradient_sums(const LessonOptions& options, const GradientLayout& gradients,
                                           std::int64_t leaves);

/// Suffix of the traffic formula of a sum over replicas, for the report: how many subtrees of it a replica
/// sends; nothing if one.
std::string describe_subtrees(const LessonOptions& options, RankOf replica);

/// Floating-point operations that a rank charges to the virtual clock in a step of @p micro_batches: a forward pass, a
/// backward pass of two for each of its operations, and with recomputation the branches' forward pass once more.
/// @param shape  shape of a micro-batch, with the rank's shard of every layer under tensor parallelism.
std::int64_t charged_flops(const ModelConfig& config, const ActivationShape& shape, std::int64_t micro_batches);

/// charged_flops() for lessons in which each rank computes every layer, or its shard of every layer. Lessons with
/// pipeline stages overload it.
template <class Options>
std::int64_t charged_flops(const Options& options, RankOf rank)
{
  const Division division = divide(options, rank);
  return charged_flops(options.config(), division.shape, division.micro_batches());
}

}  // namespace rankwise
