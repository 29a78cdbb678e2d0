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
/// The division of a model among t tensor-parallel ranks.
///
///     wte      (V, C)     rows        shard i: the i-th run of vocabulary entries, for embedding and head
///     c_attn   (C, 3 C)   columns     shard i: the i-th run of heads of q, of k and of v
///     c_proj   (C, C)     rows        shard i: the rows that multiply those heads' outputs
///     c_fc     (C, 4 C)   columns     shard i: the i-th run of hidden channels
///     c_proj   (4 C, C)   rows        shard i: the rows that multiply those channels
///     wpe, norms, biases of c_proj    replicated
///
/// What a rank computes with its columns is multiplied by its own rows only, so no message is needed in between;
/// the products are partial sums.
///
/// @source  Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4.2, for the sequence.

namespace rankwise {

/// `--tp` and the options that go with it.
struct SplitOptions {
  int tp = 0;                      ///< t, ranks that divide a model; 0: the number of ranks / `dp`
  int dp = 1;                      ///< replicas of the divided model, which divide the batch
  bool sequence_parallel = false;  ///< between the divided layers a rank has T / t tokens of each sequence
  bool regather = false;           ///< keep only this rank's normalised rows, gather all again in backward

  /// t among @p ranks ranks.
  int parts(int ranks) const { return tp > 0 ? tp : std::max(1, ranks / std::max(1, dp)); }
};

/// Declares all of them.
void declare(OptionTable& table, SplitOptions& options);

/// Refuses a model or a job that cannot be divided.
/// @param config    the model.
/// @param sequence  T.
/// @param ranks     of the job.
/// @throws UserError  if the ranks are not t times dp, if t does not divide heads, hidden channels or tokens (with
///                    the values that do), and for --regather without --sequence-parallel.
void check_split(const SplitOptions& options, const ModelConfig& config, std::int64_t sequence, int ranks);

/// The shape of a micro-batch on one tensor-parallel rank.
/// @param whole  shape for a model that is not divided.
/// @param part   index of this rank among the t.
ActivationShape divided(ActivationShape whole, const SplitOptions& options, Part part);

/// Elements of its flat vector that a tensor-parallel rank owns, so that each element of the model is counted once:
/// its shards of the divided tensors, and on rank 0 the replicated tensors too. Adjacent ranges are merged.
/// @param table  of that rank.
std::vector<Range> owned_elements(const ParameterTable& table, Part part);

/// The rows or columns that a rank holds of each tensor of the embedding and of one block, a line each.
std::string describe_split(const ModelConfig& config, Part part);

}  // namespace rankwise
