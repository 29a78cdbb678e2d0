#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/memory/memory_ledger.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "gpt2/activations.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// What a run costs, from the sizes alone.

namespace rankwise {

/// What one rank sends along an axis of the ranks in one step.
struct SentPerStep {
  std::string axis;     ///< name of the group: "world", or "dp", "tp", "pp"
  std::string what;     ///< as "a step"
  Traffic traffic;      ///< of this rank
  std::string formula;  ///< in letters, for people
};

/// What rank r of N needs and sends. `costs.hpp` of each lesson computes it from options, r and N, without starting N ranks.
struct Costs {
  TierBytes kept{};               ///< at the end of a step, by tier and category
  TierBytes most{};               ///< peak within a step
  std::vector<SentPerStep> sent;  ///< in one step, by axis
};

/// Bytes of the device, messages left out, of a rank that keeps the model state of all layers: what sharding lessens.
/// @param shape      of a micro-batch; with its part of every layer, if tensor parallelism divides them.
/// @param sequences  of the global batch that the rank computes in a step.
CategoryBytes unsharded_bytes(const LessonOptions& options, const ActivationShape& shape, std::int64_t sequences);

/// Bytes that a rank keeps for messages: scratch of such collectives of all ranks, of the sum of losses and of the comparison
/// of hashes, and the copies of values on the host.
std::int64_t message_bytes(const LessonOptions& options, std::vector<CollectiveShape> calls, RankOf rank);

/// What a rank sends in such collectives of all ranks.
Traffic sent_in(const std::vector<CollectiveShape>& calls, const LessonOptions& options, RankOf rank);

/// Floating-point operations that a rank charges to the virtual clock in a step of @p micro_batches: a forward pass, a
/// backward pass of two for each of its operations, and with recomputation the branches' forward pass once more.
/// @param shape  of a micro-batch; with its part of every layer, if tensor parallelism divides them.
std::int64_t charged_flops(const ModelConfig& config, const ActivationShape& shape, std::int64_t micro_batches);

/// The same of a lesson in which every rank has all layers, or its part of all; others have one of their own.
template <class Options>
std::int64_t charged_flops(const Options& options, RankOf rank)
{
  const ActivationShape shape = options.activation_shape(rank);
  return charged_flops(options.config(), shape, options.share(rank.ranks) / shape.B);
}

}  // namespace rankwise
