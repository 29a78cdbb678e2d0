#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/parallel/tensor/split.hpp"

/// @file
/// The cost of a divided model's messages, from the sizes alone.

namespace rankwise {

/// The sizes and options that determine a step's messages.
struct SplitPlan {
  ModelConfig config;                       ///< the model
  ActivationShape shape;                    ///< sizes of a micro-batch, as divided() gives them
  std::int64_t micro_batches = 1;           ///< number in a step
  Algorithm algorithm;                      ///< the collectives'
  std::vector<std::int64_t> of_row_sums{};  ///< numbers in each sum of RowGradients of a micro-batch; none: one sum

  /// The same, and that of one sum if there are none.
  std::vector<std::int64_t> row_sums() const;
};

/// Messages that one tensor-parallel rank sends in one step.
///
/// With n = B T C elements of the rows, by ring: 2 (t-1)/t n for a sum, and with sequence parallelism (t-1)/t n for
/// each of its halves. A layer needs four sums a micro-batch, two in the forward and two in the backward pass; with
/// sequence parallelism four halves in each, and two more with --regather. Recomputation repeats those of the
/// forward pass. The embedding and the head need one sum each, the loss three numbers a row.
/// @source  Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2.
Traffic tensor_parallel_traffic(const SplitPlan& plan, const Topology& topology, int rank);
/// The collectives that the group makes in a run, each listed once: they determine the size of its scratch.
std::vector<CollectiveShape> tensor_parallel_collectives(const SplitPlan& plan);
/// Allocates the scratch of a step's collectives in advance.
void reserve_tensor_parallel_scratch(const SplitPlan& plan, Group& parts);
/// tensor_parallel_traffic() as a formula, for the report.
std::string describe_tensor_parallel_traffic(const ActivationShape& shape);

}  // namespace rankwise
