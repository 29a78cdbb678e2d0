#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/program/options.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// How tensor parallelism divides a model among t ranks.
///
///     wte      (V, C)     rows        part i: the i-th run of vocabulary entries, for the embedding and for the head
///     c_attn   (C, 3 C)   columns     part i: the i-th run of heads of q, of k and of v
///     c_proj   (C, C)     rows        part i: the rows that those heads meet
///     c_fc     (C, 4 C)   columns     part i: the i-th run of hidden channels
///     c_proj   (4 C, C)   rows        part i: the rows that those channels meet
///     wpe, norms, biases of c_proj    every part has all of them
///
/// What a part computes with its columns meets its own rows and nothing else, so no message is needed in between; the
/// outputs of the rows are partial sums.
///
/// @source  Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4.2, for the sequence.

namespace rankwise {

/// `--tp` and what goes with it.
struct SplitOptions {
  int tp = 0;                      ///< t, ranks that divide a model; 0: all that `dp` leaves
  int dp = 1;                      ///< replicas of the divided model, which share the batch
  bool sequence_parallel = false;  ///< between the divided layers each rank has T / t tokens of each sequence
  bool regather = false;           ///< normalised rows are gathered again in the backward pass, and not kept

  /// t among @p ranks ranks.
  int parts(int ranks) const { return tp > 0 ? tp : std::max(1, ranks / std::max(1, dp)); }
};

/// Declares all of them.
void declare(OptionTable& table, SplitOptions& options);

/// Refuses what cannot be divided.
/// @param config    the model.
/// @param sequence  T.
/// @param ranks     of the job.
/// @throws UserError  for ranks that are not t times dp, heads, hidden channels or tokens that t does not divide (with the
///                    values that do), and --regather without --sequence-parallel.
void check_split(const SplitOptions& options, const ModelConfig& config, std::int64_t sequence, int ranks);

/// The shape of a micro-batch of which one rank computes a part.
/// @param whole  of a model that is not divided.
/// @param part   of this rank.
ActivationShape divided(ActivationShape whole, const SplitOptions& options, Part part);

/// Elements of its flat vector that a tensor-parallel rank owns, so that each of the model is counted once: its part of the
/// divided tensors, and on rank 0 the replicated ones. Neighbours are one range.
/// @param table  of that part.
std::vector<Range> owned_elements(const ParameterTable& table, Part part);

/// A table of what a part has of each tensor of the embedding and of one block, a line each.
std::string describe_split(const ModelConfig& config, Part part);

}  // namespace rankwise
