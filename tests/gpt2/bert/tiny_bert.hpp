#pragma once

#include <algorithm>
#include <vector>

#include "gpt2/bert/model.hpp"
#include "tests/gpt2/tiny_model.hpp"

/// @file
/// A BERT for tests, with all that a micro-batch needs. Its pairs are given token by token, so that each test says what
/// is padding and what is predicted.

namespace rankwise::testing {

/// A BERT of a few thousand parameters, whose vocabulary of 11 is padded to 16.
inline ModelConfig tiny_bert_config(std::int64_t layers, std::int64_t heads, std::int64_t channels,
                                    std::int64_t context)
{
  ModelConfig config = tiny_config(layers, heads, channels, context);
  config.architecture = Architecture::bert;
  config.mask = {Mask::Kind::full, 0};
  return config;
}

/// A micro-batch of pairs of these lengths; tokens differ by sequence and place. About every third token is predicted,
/// the first of a sequence always. The labels are 0, 1, and for every third pair -1.
/// @param pad_token  the token after the end of a pair.
inline PairBatch pairs_of(const ModelConfig& config, std::int64_t T, const std::vector<std::int64_t>& lengths,
                          Token pad_token = 0)
{
  PairBatch batch;
  batch.B = std::ssize(lengths);
  batch.T = T;
  batch.padding = pad_token;
  for (std::int64_t b = 0; b < batch.B; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    for (std::int64_t t = 0; t < T; ++t) {
      const bool inside = t < length, predicted = inside && (t == 0 || (2 * b + t) % 3 == 0);
      batch.inputs.push_back(inside ? token_of(config, 0, b, t) : pad_token);
      batch.segments.push_back(inside && 2 * t > length ? 1 : 0);
      batch.targets.push_back(predicted ? token_of(config, 1, b, t) : -1);
      batch.predicted += predicted ? 1 : 0;
    }
    batch.lengths.push_back(static_cast<Token>(length));
    batch.labels.push_back(static_cast<Token>(b % 3 == 2 ? -1 : b % 3));
    batch.pairs += b % 3 == 2 ? 0 : 1;
  }
  return batch;
}

/// A BERT with parameters, gradients, and buffers for one micro-batch.
struct TinyBert {
  TinyBert(Laboratory& laboratory, const ModelConfig& sizes, const TinyOptions& o)
      : lab(laboratory),
        config(sizes),
        table(config),
        parameters(lab.zeros(o.type, {table.elements()})),
        gradients(lab.zeros(accumulator_of(o.type), {table.elements()})),
        tied(lab.zeros(accumulator_of(o.type), {table.entries().front().elements.count})),
        model({config, lab.kernels(), {}, o.dropout, 5}, lab.stream()),
        work(lab.memory(), config, {o.type, o.B, o.T, {}, false}),
        kept(lab.memory(), config, {o.type, o.B, o.T, {}, false}, work)
  {
    fill_parameters(parameters, table);
  }

  /// Copies @p pairs to where the model finds them.
  PairMicroBatch placed(const PairBatch& pairs, double pair_weight) const
  {
    PairMicroBatch batch = place(kept, lab.stream(), pairs, {3, pairs.B}, 2);
    batch.pair_weight = pair_weight;
    return batch;
  }
  /// Both losses; the gradient of their weighted sum is left in `gradients`, the head's part of the token embedding's
  /// in `tied`.
  BertLoss forward_backward(const PairMicroBatch& batch) const
  {
    lab.stream().zero(gradients);
    lab.stream().zero(tied);
    return rankwise::forward_backward(model, table, parameters, gradients, tied, kept, work, batch);
  }
  /// The gradient of every element of the table, both parts of the token embedding's added.
  std::vector<double> whole_gradient() const
  {
    std::vector<double> whole = values_of(gradients);
    const std::vector<double> head = values_of(tied);
    for (std::size_t i = 0; i < head.size(); ++i) whole[i] += head[i];
    return whole;
  }

  Laboratory& lab;
  ModelConfig config;
  ParameterTable table;
  Tensor parameters, gradients, tied;
  BertModel model;
  Workspace work;
  BertActivations kept;
};

/// The elements of @p flat, one for each of a table, that belong to @p p; padding left out.
inline std::vector<double> elements_of(const std::vector<double>& flat, const Parameter& p)
{
  const auto first = flat.begin() + p.elements.first;
  return {first, first + p.shape.elements()};
}

}  // namespace rankwise::testing
