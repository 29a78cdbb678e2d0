#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/program/options.hpp"
#include "gpt2/config.hpp"

/// @file
/// The sizes of the model that is planned, and its floating-point operations.

namespace rankwise {

/// The sizes of a GPT. A size that is 0 is taken from the preset.
struct PlannedModel {
  std::string preset = "gpt2-xl";  ///< one of GPT-2's sizes, or 22b, 175b, 530b, 1t of the papers
  std::int64_t layers = 0;         ///< L
  std::int64_t heads = 0;          ///< H
  std::int64_t channels = 0;       ///< C
  std::int64_t vocabulary = 0;     ///< V, with its padding
  std::int64_t context = 0;        ///< T, also the number of position embeddings
  ExpertConfig experts = {};       ///< experts of the MLP branches

  /// All sizes filled in.
  /// @throws UserError  for a preset that does not exist and for impossible sizes.
  ModelConfig config() const;
};

/// Declares them.
void declare(OptionTable& table, PlannedModel& model);

/// The presets of the planner in order of their size: GPT-2's, and those of Korthikanti et al. 2022, Table 3.
std::vector<ModelConfig> planned_presets();

/// Parameters of one rank of stage @p stage of @p pp, which has 1 / tp of every layer and L / pp layers: matrices and the
/// biases of divided outputs are divided, norms and the other biases are not. The last stage has a copy of the embedding.
/// @param ep  ranks that share the experts.
std::int64_t parameters_of_stage(const ModelConfig& model, std::int64_t tp, std::int64_t pp, std::int64_t stage,
                                 std::int64_t ep = 1);

/// Operations of a step by F = 96 B T L C^2 (1 + T / 6C + V / 16 L C), which counts every block's forward pass twice.
/// @param sequences  B, of the global batch.
/// @source  Narayanan et al. 2021, equation 3; their tables give times as F / (time x GPUs).
double narayanan_flops(const ModelConfig& model, std::int64_t sequences);

}  // namespace rankwise
