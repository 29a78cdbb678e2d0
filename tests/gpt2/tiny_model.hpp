#pragma once

#include <string>
#include <vector>

#include "gpt2/model.hpp"
#include "gpt2/parameter_table.hpp"
#include "tests/gpt2/testing.hpp"

/// @file
/// A model for tests, with all that a micro-batch needs. Tokens, targets and parameters depend on their place in the
/// whole (sequence of the global batch, element of the whole tensor), so that runs of any layout can be compared.

namespace rankwise::testing {

/// A GPT-2 of a few thousand parameters, whose vocabulary of 11 is padded to 16.
inline ModelConfig tiny_config(std::int64_t layers, std::int64_t heads, std::int64_t channels, std::int64_t context)
{
  return {"tiny", layers, heads, channels, context, 11, {}};
}

/// Options of a TinyModel.
struct TinyOptions {
  DType type = DType::f32;  ///< of parameters and activations
  std::int64_t B = 1;       ///< sequences of a micro-batch
  std::int64_t T = 0;       ///< tokens of a sequence
  double dropout = 0;       ///< rate
  Part part{};              ///< which part of each layer
  bool recompute = false;   ///< keep inputs of blocks only
};

/// Token @p t of sequence @p g of the global batch of step @p step.
inline std::int32_t token_of(const ModelConfig& config, std::int64_t step, std::int64_t g, std::int64_t t)
{
  const double u = (1 + number((step * 1000 + g) * 10000 + t, 77)) / 2;
  return static_cast<std::int32_t>(u * static_cast<double>(config.vocabulary));
}

/// Fills all parameters of @p flat with numbers that are far from zero, so that no gradient is: norm weights around 1,
/// the rest in (-0.4, 0.4), padding zero.
inline void fill_parameters(const Tensor& flat, const ParameterTable& table)
{
  std::vector<double> values(static_cast<std::size_t>(flat.elements()));
  for (const Parameter& p : table.entries())
    for (std::int64_t i = 0; i < p.shape.elements(); ++i)
      values[static_cast<std::size_t>(p.elements.first + i)] =
          (p.initial == Initial::one ? 1 : 0) + 0.4 * number(i, static_cast<std::uint32_t>(p.number));
  assign(flat, values);
}

/// The elements of @p part, taken from where its slabs stand in the whole tensors; padding zero.
/// @param whole  a table of all units, whole tensors.
/// @param flat   its flat vector.
inline Tensor part_of(Laboratory& lab, const ParameterTable& part, const ParameterTable& whole, const Tensor& flat)
{
  const Tensor mine = lab.zeros(flat.type(), {part.elements()});
  for (const Parameter& p : part.entries()) {
    const std::int64_t columns = p.shape[p.shape.rank() - 1], stored_columns = p.stored[p.stored.rank() - 1];
    const std::int64_t first = whole.entries().at(static_cast<std::size_t>(p.number)).elements.first;
    for (const Slab& slab : part.slabs(p))
      for (std::int64_t r = 0; r < slab.rows.count; ++r)
        lab.stream().copy(
            mine.slice({p.elements.first + (slab.stored_row + r) * stored_columns + slab.stored_column,
                        slab.columns.count}),
            flat.slice({first + (slab.rows.first + r) * columns + slab.columns.first, slab.columns.count}));
  }
  return mine;
}

/// A model or a part of it, with parameters, gradients, and buffers for one micro-batch.
struct TinyModel {
  TinyModel(Laboratory& laboratory, const ModelConfig& config, const TinyOptions& o)
      : lab(laboratory),
        options(o),
        table(config, o.part),
        parameters(lab.zeros(o.type, {table.elements()})),
        gradients(lab.zeros(accumulator_of(o.type), {table.elements()})),
        tied(lab.zeros(accumulator_of(o.type), {table.entries().front().elements.count})),
        model({config, lab.kernels(), o.part, o.dropout, 5, &lab.stream()}),
        work(lab.memory(), config, {o.type, o.B, o.T, o.part, o.recompute}),
        kept(lab.memory(), config, {o.type, o.B, o.T, o.part, o.recompute}, work),
        p(model_tensors(table, parameters)),
        d(model_tensors(table, gradients, tied))
  {
    if (o.part.count == 1) fill_parameters(parameters, table);
  }

  /// Sequences [first, first + B) of a step. Every fifth target or so is not counted.
  MicroBatch batch(std::int64_t first, std::int64_t step = 0) const
  {
    Batch data{options.B, options.T, {}, {}, 0};
    for (std::int64_t g = first; g < first + options.B; ++g)
      for (std::int64_t t = 0; t < options.T; ++t) {
        const bool counted = (2 * g + 3 * t + step) % 5 != 0;
        data.inputs.push_back(token_of(model.context.config, step, g, t));
        data.targets.push_back(counted ? token_of(model.context.config, step, g, t + 1) : -1);
        data.valid_tokens += counted ? 1 : 0;
      }
    return place(kept, lab.stream(), data, {first, options.B}, step);
  }

  /// The sum of losses of sequences [first, first + B).
  LossSum loss(std::int64_t first) const { return forward(model, p, kept, work, batch(first)); }

  /// The same; its gradient is added to `gradients`, the head's part of the token embedding's to `tied`.
  LossSum forward_backward(std::int64_t first) const
  {
    return rankwise::forward_backward(model, p, d, kept, work, lab.stream(), batch(first));
  }

  Laboratory& lab;
  TinyOptions options;
  ParameterTable table;
  Tensor parameters, gradients, tied;
  Model model;
  Workspace work;
  Activations kept;
  ModelTensors p, d;  // views of parameters; of gradients and tied
};

}  // namespace rankwise::testing
