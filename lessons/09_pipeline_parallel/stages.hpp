#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "gpt2/config.hpp"
#include "lessons/09_pipeline_parallel/schedule_check.hpp"

/// @file
/// How a model is cut into stages of about the same work.

namespace rankwise {

/// The units of each stage: whole blocks, at least one; the embedding with the first and the head with the last. The cut with
/// the smallest largest stage by unit_flops(); of several such the one with the smallest second largest, and so on; of equal ones
/// the one whose earlier stages have more blocks.
/// @param stages    S, at most the blocks of the model.
/// @param sequence  T.
std::vector<Range> make_stages(const ModelConfig& config, int stages, std::int64_t sequence);

/// The units of each stage, from the blocks of each as `--partition` gives them.
/// @param blocks  of each stage, as parse_partition() returns them.
std::vector<Range> make_stages(const ModelConfig& config, const std::vector<std::int64_t>& blocks);

/// The numbers of a text like "3,3,4,2".
/// @param stages      at most the blocks of the model.
/// @throws UserError  unless there are @p stages whole numbers, at least 1 each, that add up to the model's blocks.
std::vector<std::int64_t> parse_partition(const std::string& text, const ModelConfig& config, int stages);

/// What the actions of each stage take: floating-point operations of a micro-batch, unit by unit to the nearest. B and W together
/// are twice F; W takes two for each parameter and row, and B the rest, as attention's products of activations have no W.
/// @param stages     of make_stages().
/// @param rows       R of a micro-batch.
/// @param sequence   T.
/// @param recompute  whether the forward pass of the blocks runs again.
/// @source  Qi et al. 2024 (Zero Bubble Pipeline Parallelism), table 1.
std::vector<ActionCosts> stage_costs(const ModelConfig& config, const std::vector<Range>& stages, std::int64_t rows,
                                     std::int64_t sequence, bool recompute);

}  // namespace rankwise
