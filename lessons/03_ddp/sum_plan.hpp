#pragma once

#include <cstdint>

#include "common/messages/topology.hpp"
#include "common/messages/traffic_ledger.hpp"
#include "gpt2/config.hpp"

/// @file
/// What the sums of a data-parallel run cost, from the sizes alone.

namespace rankwise {

/// `--strategy`: when gradients are summed over the ranks.
enum class Strategy : std::uint8_t {
  per_tensor,  ///< after the backward pass, one tensor after the other
  flat,        ///< after the backward pass, all at once
  bucketed,    ///< after the backward pass, in buckets
  overlapped,  ///< in buckets, each as soon as the backward pass is done with it
};

/// What decides in which pieces gradients are summed.
struct SumPlan {
  ModelConfig config;             ///< the model
  DType gradients;                ///< type of the gradients
  Strategy strategy;              ///< when
  std::int64_t bucket_bytes = 0;  ///< of a bucket, at least
  bool tied_apart = false;        ///< whether the tied embedding's second gradient is a sum of its own
  Algorithm algorithm;            ///< by which they are summed
};

/// What one rank sends to sum one step's gradients.
Traffic step_traffic(const SumPlan& plan, const Topology& topology, int rank);

/// Bytes of scratch that one rank keeps for all collectives of a run: sums of gradients and losses, the broadcast of the
/// initial model, the comparison of replicas.
std::int64_t scratch_of_run(const SumPlan& plan, const Topology& topology, int rank);

}  // namespace rankwise
