#include "gpt2/bert/parameters.hpp"

#include <fmt/format.h>

namespace rankwise {

void ParameterTable::add_linear(const std::string& name, std::int64_t in, std::int64_t out, int unit)
{
  const Shape weight{in, out};
  add({.name = name + ".weight", .shape = weight, .stored = weight, .unit = unit, .initial = Initial::normal});
  add({.name = name + ".bias", .shape = {out}, .stored = {out}, .unit = unit});
}

void ParameterTable::add_bert_embedding(const ModelConfig& config)
{
  const std::string embeddings = "bert.embeddings.";
  const std::int64_t C = config.channels;
  add({.name = embeddings + "word_embeddings.weight",
       .shape = {config.vocabulary, C},
       .stored = {config.padded_vocabulary(), C},
       .initial = Initial::normal});
  for (const auto& [name, rows] : {std::pair{"position", config.context}, std::pair{"token_type", bert_segments}})
    add({.name = fmt::format("{}{}_embeddings.weight", embeddings, name),
         .shape = {rows, C},
         .stored = {rows, C},
         .initial = Initial::normal});
  add_norm(embeddings + "LayerNorm", C, 0);
}

void ParameterTable::add_bert_branch(const ModelConfig& config, int branch)
{
  const bool attention = branch % 2 == 0;
  const std::string layer = fmt::format("bert.encoder.layer.{}.", branch / 2);
  const std::int64_t C = config.channels;
  const int unit = 1 + branch;
  // In the order of branch_tensors(): the norm comes first in the table, and last in the computation.
  add_norm(layer + (attention ? "attention.output.LayerNorm" : "output.LayerNorm"), C, unit);
  add_linear(layer + (attention ? "attention.self.qkv" : "intermediate.dense"), C, (attention ? 3 : 4) * C, unit);
  add_linear(layer + (attention ? "attention.output.dense" : "output.dense"), (attention ? 1 : 4) * C, C, unit);
}

void ParameterTable::add_bert_head(const ModelConfig& config)
{
  const std::int64_t C = config.channels;
  const int unit = static_cast<int>(unit_count(config)) - 1;
  add_linear("bert.pooler.dense", C, C, unit);
  add_linear("cls.seq_relationship", C, next_sentence_labels, unit);
  add_linear("cls.predictions.transform.dense", C, C, unit);
  add_norm("cls.predictions.transform.LayerNorm", C, unit);
  add({.name = "cls.predictions.bias",
       .shape = {config.vocabulary},
       .stored = {config.padded_vocabulary()},
       .unit = unit});
}

BertEmbeddingTensors bert_embedding_tensors(const std::vector<Tensor>& tensors)
{
  check(tensors.size() == 5, "not the tensors of BERT's embedding");
  return {tensors[0], tensors[1], tensors[2], tensors[3], tensors[4]};
}

BertHeadTensors bert_head_tensors(const std::vector<Tensor>& tensors, const Tensor& token)
{
  check(tensors.size() == 9, "not the tensors of BERT's head");
  return {{tensors[0], tensors[1]},
          {tensors[2], tensors[3]},
          {tensors[4], tensors[5]},
          tensors[6],
          tensors[7],
          tensors[8],
          token};
}

}  // namespace rankwise
