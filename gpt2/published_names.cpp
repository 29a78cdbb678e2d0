#include "gpt2/published_names.hpp"

#include <fmt/format.h>

namespace rankwise {

std::vector<std::int64_t> PublishedTensor::shape() const
{
  if (vector) return {columns.count};
  return transposed ? std::vector{columns.count, rows} : std::vector{rows, columns.count};
}

std::vector<PublishedTensor> published_tensors(Architecture architecture, const Parameter& parameter)
{
  constexpr std::string_view fused = "qkv";
  const std::size_t at = parameter.name.find(fused);
  const bool divided = architecture == Architecture::bert && at != std::string::npos;
  const bool matrix = parameter.shape.rank() == 2;
  const std::int64_t width = parameter.shape[parameter.shape.rank() - 1];
  std::vector<PublishedTensor> tensors;
  for (const char* const part : {"query", "key", "value"}) {
    PublishedTensor tensor{.name = parameter.name,
                           .rows = matrix ? parameter.shape[0] : 1,
                           .width = width,
                           .columns = {0, width},
                           .vector = !matrix};
    tensor.transposed =
        architecture == Architecture::bert && matrix && parameter.name.find("embeddings") == std::string::npos;
    if (divided) {
      tensor.name.replace(at, fused.size(), part);
      tensor.columns = {std::ssize(tensors) * (width / 3), width / 3};
    }
    tensors.push_back(tensor);
    if (!divided) break;
  }
  return tensors;
}

const PublishedNames& published_names(Architecture architecture)
{
  static const PublishedNames gpt2{
      .called = "GPT-2",
      .example =
          "GPT-2 of Hugging Face's transformers library: model.safetensors with tensors called\n"
          "wte.weight, wpe.weight, h.0.ln_1.weight and so on.",
      .prefix = "transformer.",
      .token_embedding = "wte.weight",
      .position_embedding = "wpe.weight",
      .of_layer = "h.{}.ln_1.weight",
      .tied = {{"lm_head.weight", "wte.weight"}},
      .redundant = {".attn.bias", ".attn.masked_bias"}};
  static const PublishedNames bert{
      .called = "BERT",
      .example =
          "BertForPreTraining of Hugging Face's transformers library: model.safetensors with tensors called\n"
          "bert.embeddings.word_embeddings.weight, cls.predictions.bias and so on.",
      .prefix = "",
      .token_embedding = "bert.embeddings.word_embeddings.weight",
      .position_embedding = "bert.embeddings.position_embeddings.weight",
      .of_layer = "bert.encoder.layer.{}.output.dense.weight",
      .tied = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
               {"cls.predictions.decoder.bias", "cls.predictions.bias"}},
      .redundant = {".embeddings.position_ids"}};
  return architecture == Architecture::bert ? bert : gpt2;
}

std::string converted_name(const std::string& name)
{
  for (const auto& [ours, theirs] : {std::pair{"LayerNorm.weight", "gamma"}, std::pair{"LayerNorm.bias", "beta"}})
    if (name.ends_with(ours)) return name.substr(0, name.rfind('.') + 1) + theirs;
  return name;
}

}  // namespace rankwise
