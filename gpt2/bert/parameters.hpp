#pragma once

#include <cstdint>
#include <vector>

#include "gpt2/parameter_table.hpp"

/// @file
/// The parameters of a BERT's embedding and head, or their gradients. Those of a branch are BranchTensors.
///
/// @source  Devlin et al. 2018, section 3; the names are those of BertForPreTraining in Hugging Face's transformers, but
///          for q, k and v of a layer, which are one tensor here (published_names.hpp).

namespace rankwise {

constexpr std::int64_t bert_segments = 2;         ///< a pair has two sentences
constexpr std::int64_t next_sentence_labels = 2;  ///< the second follows the first, or it does not

/// Unit 0.
struct BertEmbeddingTensors {
  Tensor token;        ///< (V, C), tied to the head
  Tensor position;     ///< (context, C)
  Tensor segment;      ///< (2, C)
  Tensor norm_weight;  ///< (C)
  Tensor norm_bias;    ///< (C)
};

/// A linear layer: y = x weight + bias.
struct LinearTensors {
  Tensor weight;  ///< (in, out)
  Tensor bias;    ///< (out)
};

/// Unit 2 L + 1.
struct BertHeadTensors {
  LinearTensors pooler;         ///< (C, C), of the first token of a sequence
  LinearTensors next_sentence;  ///< (C, 2), from the pooled output
  LinearTensors transform;      ///< (C, C), of every token
  Tensor norm_weight;           ///< (C)
  Tensor norm_bias;             ///< (C)
  Tensor bias;                  ///< (V) of the logits
  Tensor token;                 ///< (V, C) the token embedding again; its gradient may have a separate buffer
};

/// Names the tensors of unit 0.
/// @param tensors  the result of unit_tensors().
BertEmbeddingTensors bert_embedding_tensors(const std::vector<Tensor>& tensors);
/// Names the tensors of unit 2 L + 1.
/// @param tensors  the result of unit_tensors().
/// @param token    the (V, C) tensor tied to the embedding.
BertHeadTensors bert_head_tensors(const std::vector<Tensor>& tensors, const Tensor& token);

}  // namespace rankwise
