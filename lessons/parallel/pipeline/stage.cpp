#include "lessons/parallel/pipeline/stage.hpp"

namespace rankwise {

namespace {

/// Range of the token embedding in the flat vector of the whole table.
Range token_of(const ParameterTable& table)
{
  return table.entries().front().elements;
}

}  // namespace

Range PipelineStage::token(const ParameterTable& table) const
{
  if (first) return token_of(table);
  return {elements.count, copied.count};
}

std::vector<PipelineStage> describe_stages(const ParameterTable& table, const std::vector<Range>& units)
{
  std::vector<PipelineStage> stages;
  for (std::size_t s = 0; s < units.size(); ++s) {
    const std::int64_t first = table.unit_elements(static_cast<int>(units[s].first)).first;
    const std::int64_t end = table.unit_elements(static_cast<int>(units[s].end() - 1)).end();
    stages.push_back({.number = static_cast<int>(s),
                      .first = s == 0,
                      .last = s + 1 == units.size(),
                      .units = units[s],
                      .elements = {first, end - first}});
  }
  if (stages.size() > 1) stages.back().copied = token_of(table);
  return stages;
}

std::vector<Range> ranges_of(const ParameterTable& table, const PipelineStage& stage)
{
  const std::int64_t token = stage.first ? token_of(table).count : 0;
  std::vector<Range> ranges{
      {stage.elements.first, token}, {stage.elements.first + token, stage.elements.count - token}, stage.copied};
  std::erase_if(ranges, [](const Range& range) { return range.empty(); });
  return ranges;
}

std::vector<Range> ranges_of(const ParameterTable& table, const std::vector<PipelineStage>& stages)
{
  std::vector<Range> ranges;
  for (const PipelineStage& stage : stages)
    for (const Range& range : ranges_of(table, stage)) ranges.push_back(range);
  return ranges;
}

bool is_copy(const PipelineStage& stage, Range range)
{
  return !stage.copied.empty() && range.first == stage.copied.first;
}

ModelTensors stage_tensors(const ParameterTable& table, const PipelineStage& stage, const Tensor& flat,
                           const Tensor& tied)
{
  ModelTensors tensors;
  for (std::int64_t unit = stage.units.first; unit < stage.units.end(); ++unit) {
    const Range elements = table.unit_elements(static_cast<int>(unit));
    const std::vector<Tensor> of_unit = unit_tensors(
        table, static_cast<int>(unit), flat.slice({elements.first - stage.elements.first, elements.count}));
    if (stage.first && unit == stage.units.first)
      tensors.embedding = embedding_tensors(of_unit);
    else if (stage.last && unit + 1 == stage.units.end())
      tensors.head = head_tensors(of_unit, {});
    else
      tensors.branches.push_back(branch_tensors(of_unit));
  }
  if (!stage.last) return tensors;
  const Parameter& token = table.entries().front();
  tensors.head.token = (tied.empty() ? flat.slice(stage.token(table)) : tied).reshaped(token.stored);
  return tensors;
}

GradientLayout gradient_layout(const ParameterTable& table, const PipelineStage& stage, DType type)
{
  const bool copied = stage.last && !stage.first && table.entries().front().frozen;
  std::vector<Range> frozen = frozen_ranges(table, stage.elements);
  if (copied) frozen.push_back(stage.token(table));
  return {stage.size(), type, stage.first && stage.last ? stage.token(table) : Range{}, frozen};
}

}  // namespace rankwise
