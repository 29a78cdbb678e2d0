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
/// The token embedding is tied: the first stage looks tokens up in it, the last one makes logits with it. Where these are two
/// stages the last one has a copy behind its own elements.
struct PipelineStage {
  int number = 0;      ///< 0 .. S - 1
  bool first = false;  ///< whether it begins with the embedding
  bool last = false;   ///< whether it ends with the head
  Range units;         ///< of the model
  Range elements;      ///< of the table's flat vector: what it alone has
  Range copied{};      ///< of the table's flat vector: the token embedding, where this is a copy of it; else empty

  /// Of its flat vector: its own, then the copy.
  std::int64_t size() const { return elements.count + copied.count; }
  /// Where the token embedding lies in its flat vector; empty in a stage that needs none.
  Range token(const ParameterTable& table) const;
};

/// All stages of a model.
/// @param table  of all units; none of its tensors is replicated.
/// @param units  of each stage, as make_stages() gives them.
std::vector<PipelineStage> describe_stages(const ParameterTable& table, const std::vector<Range>& units);

/// What a stage has of the table, as its flat vector has it: the token embedding, what else is its own, its copy; without those
/// that are empty.
std::vector<Range> ranges_of(const ParameterTable& table, const PipelineStage& stage);
/// What the stages of one rank have, one stage behind the other.
std::vector<Range> ranges_of(const ParameterTable& table, const std::vector<PipelineStage>& stages);
/// Whether a range of a stage is a copy, which another rank owns.
bool is_copy(const PipelineStage& stage, Range range);
/// What belongs to the ranges of one rank, without that of the copy, which another rank owns.
/// @param of_ranges  of each of ranges_of() its stages; the copy is the last.
/// @param last       of its stages.
template <class T>
std::vector<T> without_copy(std::vector<T> of_ranges, const PipelineStage& last)
{
  if (!last.copied.empty()) of_ranges.pop_back();
  return of_ranges;
}

/// The parameters of a stage, or their gradients, as views of its flat vector; what it has not is empty.
/// @param flat  (stage.size()).
/// @param tied  as for model_tensors().
ModelTensors stage_tensors(const ParameterTable& table, const PipelineStage& stage, const Tensor& flat,
                           const Tensor& tied = {});

/// What a stage's gradients are, to be summed up.
GradientLayout gradient_layout(const ParameterTable& table, const PipelineStage& stage, DType type);

}  // namespace rankwise
