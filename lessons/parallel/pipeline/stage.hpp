#pragma once

#include <vector>

#include "gpt2/gradient_sum.hpp"
#include "gpt2/model.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// A stage: a run of a model's units, and its parameters.

namespace rankwise {

/// One stage of a model.
///
/// The token embedding is tied: the first stage looks tokens up in it, the last one computes logits with it. If
/// these are two stages, the last one has a copy after its own elements.
struct PipelineStage {
  int number = 0;      ///< 0 .. S - 1
  bool first = false;  ///< whether it begins with the embedding
  bool last = false;   ///< whether it ends with the head
  Range units;         ///< run of the model's table units
  Range elements;      ///< range of the table's flat vector that belongs to this stage alone
  Range copied{};      ///< range of the copied token embedding in the table's flat vector, or empty

  /// Size of the stage's flat vector: its own elements, then the copy.
  std::int64_t size() const { return elements.count + copied.count; }
  /// Range of the token embedding in the stage's flat vector; empty in a stage without it.
  Range token(const ParameterTable& table) const;
};

/// All stages of a model.
/// @param table  of all units; none of its tensors is replicated.
/// @param units  of each stage, as from make_stages().
std::vector<PipelineStage> describe_stages(const ParameterTable& table, const std::vector<Range>& units);

/// The stage's ranges of the table, in the order of its flat vector: the token embedding, the rest of its own
/// elements, the copy; empty ranges are left out.
std::vector<Range> ranges_of(const ParameterTable& table, const PipelineStage& stage);
/// The same for all stages of one rank, one stage after the other.
std::vector<Range> ranges_of(const ParameterTable& table, const std::vector<PipelineStage>& stages);
/// True if a range of a stage is the copy of the token embedding, which another rank owns.
bool is_copy(const PipelineStage& stage, Range range);
/// Removes the entry of the copied token embedding, which another rank owns, from a list by range.
/// @param of_ranges  one entry for each of ranges_of() this rank's stages; that of the copy is the last.
/// @param last       the last of these stages.
template <class T>
std::vector<T> without_copy(std::vector<T> of_ranges, const PipelineStage& last)
{
  if (!last.copied.empty()) of_ranges.pop_back();
  return of_ranges;
}

/// The parameters of a stage, or their gradients, as views of its flat vector; tensors of other stages are empty.
/// @param flat  (stage.size()).
/// @param tied  as for model_tensors().
ModelTensors stage_tensors(const ParameterTable& table, const PipelineStage& stage, const Tensor& flat,
                           const Tensor& tied = {});

/// The layout of a stage's gradients, for GradientSum.
GradientLayout gradient_layout(const ParameterTable& table, const PipelineStage& stage, DType type);

}  // namespace rankwise
