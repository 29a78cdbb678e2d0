#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "gpt2/config.hpp"
#include "lessons/parallel/pipeline/schedule_check.hpp"

/// @file
/// Partition of a model into stages of about the same work.

namespace rankwise {

/// The units of each stage: whole blocks, at least one; the embedding with the first and the head with the last. By
/// unit_flops() the largest stage is as small as possible; among such partitions the second largest is, and so on;
/// among equal ones earlier stages have more blocks.
/// @param stages    S, at most the blocks of the model.
/// @param sequence  T.
std::vector<Range> make_stages(const ModelConfig& config, int stages, std::int64_t sequence);

/// The units of each stage, from the blocks of each as `--partition` gives them.
/// @param blocks  number of blocks of each stage, as from parse_partition().
std::vector<Range> make_stages(const ModelConfig& config, const std::vector<std::int64_t>& blocks);

/// The numbers of a text like "3,3,4,2".
/// @param stages      at most the blocks of the model.
/// @throws UserError  unless there are @p stages whole numbers, at least 1 each, that add up to the model's blocks.
std::vector<std::int64_t> parse_partition(const std::string& text, const ModelConfig& config, int stages);

/// Costs of each stage's actions: floating-point operations of a micro-batch, rounded unit by unit. B and W
/// together take twice as many as F. W takes two for each parameter and row, and B the rest, because attention's
/// products of activations have no weights.
/// @param stages     of make_stages().
/// @param rows       R of a micro-batch.
/// @param sequence   T.
/// @param recompute  whether blocks are recomputed in the backward pass.
/// @source  Qi et al. 2024 (Zero Bubble Pipeline Parallelism), table 1.
std::vector<ActionCosts> stage_costs(const ModelConfig& config, const std::vector<Range>& stages, std::int64_t rows,
                                     std::int64_t sequence, bool recompute);

}  // namespace rankwise
