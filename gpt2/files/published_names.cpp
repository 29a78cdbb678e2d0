#include "gpt2/files/published_names.hpp"

#include <array>
#include <string_view>

namespace rankwise {

std::vector<std::int64_t> PublishedTensor::shape() const
{
  if (vector) return {columns.count};
  return transposed ? std::vector{columns.count, rows} : std::vector{rows, columns.count};
}

std::vector<PublishedTensor> published_tensors(Architecture architecture, const Parameter& parameter)
{
  constexpr std::string_view fused = "qkv";
  const bool bert = architecture == Architecture::bert, matrix = parameter.shape.rank() == 2;
  const std::int64_t width = parameter.shape[parameter.shape.rank() - 1];
  const PublishedTensor whole{.name = parameter.name,
                              .rows = matrix ? parameter.shape[0] : 1,
                              .width = width,
                              .columns = {0, width},
                              .vector = !matrix,
                              .transposed = bert && matrix && parameter.unit > 0};  // not the embeddings
  const std::size_t at = parameter.name.find(fused);
  if (!bert || at == std::string::npos) return {whole};
  std::vector<PublishedTensor> thirds(3, whole);
  for (std::size_t i = 0; i < thirds.size(); ++i) {
    thirds[i].name.replace(at, fused.size(), std::array{"query", "key", "value"}[i]);
    thirds[i].columns = {static_cast<std::int64_t>(i) * (width / 3), width / 3};
  }
  return thirds;
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
