#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "gpt2/bert/parameters.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/bert/tiny_bert.hpp"

using namespace rankwise;
using namespace rankwise::testing;

TEST_CASE("BERT's ParameterTable: has Hugging Face's names, q, k and v as one tensor, matrices as (in, out)")
{
  const std::string layer = "bert.encoder.layer.0.", head = "cls.predictions.";
  const std::vector<std::pair<std::string, Shape>> expected{
      {"bert.embeddings.word_embeddings.weight", {11, 12}},
      {"bert.embeddings.position_embeddings.weight", {9, 12}},
      {"bert.embeddings.token_type_embeddings.weight", {2, 12}},
      {"bert.embeddings.LayerNorm.weight", {12}},
      {"bert.embeddings.LayerNorm.bias", {12}},
      {layer + "attention.output.LayerNorm.weight", {12}},
      {layer + "attention.output.LayerNorm.bias", {12}},
      {layer + "attention.self.qkv.weight", {12, 36}},
      {layer + "attention.self.qkv.bias", {36}},
      {layer + "attention.output.dense.weight", {12, 12}},
      {layer + "attention.output.dense.bias", {12}},
      {layer + "output.LayerNorm.weight", {12}},
      {layer + "output.LayerNorm.bias", {12}},
      {layer + "intermediate.dense.weight", {12, 48}},
      {layer + "intermediate.dense.bias", {48}},
      {layer + "output.dense.weight", {48, 12}},
      {layer + "output.dense.bias", {12}},
      {"bert.pooler.dense.weight", {12, 12}},
      {"bert.pooler.dense.bias", {12}},
      {"cls.seq_relationship.weight", {12, 2}},
      {"cls.seq_relationship.bias", {2}},
      {head + "transform.dense.weight", {12, 12}},
      {head + "transform.dense.bias", {12}},
      {head + "transform.LayerNorm.weight", {12}},
      {head + "transform.LayerNorm.bias", {12}},
      {head + "bias", {11}}};
  const ParameterTable table(tiny_bert_config(1, 2, 12, 9));
  REQUIRE(table.entries().size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Parameter& p = table.entries()[i];
    INFO(p.name);
    CHECK(p.name == expected[i].first);
    CHECK(p.shape == expected[i].second);
    CHECK(p.decays == (p.shape.rank() == 2));  // matrices only
    const bool norm_weight = p.name.ends_with("LayerNorm.weight");
    CHECK((p.initial == Initial::one) == norm_weight);
    CHECK((p.initial == Initial::zero) == (p.shape.rank() == 1 && !norm_weight));
    CHECK(p.unit == (i < 5 ? 0 : i < 11 ? 1 : i < 17 ? 2 : 3));
  }
}

TEST_CASE("ModelConfig::parameters: those of a BERT's table, and of the published sizes")
{
  for (const std::int64_t layers : {1, 3}) {
    const ModelConfig config = tiny_bert_config(layers, 2, 12, 9);
    const ParameterTable table(config);
    std::int64_t elements = 0;
    for (const Parameter& p : table.entries()) elements += p.shape.elements();
    CHECK(config.parameters() == elements);
  }
  // As BertForPreTraining counts them.
  CHECK(preset("bert-base", Architecture::bert).parameters() == 110'106'428);
  CHECK(preset("bert-large", Architecture::bert).parameters() == 336'226'108);
}

TEST_CASE("bert_embedding_tensors, bert_head_tensors: refuse the tensors of another unit")
{
  Laboratory lab;
  const std::vector<Tensor> six(6, lab.zeros(DType::f32, {1}));
  CHECK_THROWS_AS(bert_embedding_tensors(six), Error);
  CHECK_THROWS_AS(bert_head_tensors(six, six[0]), Error);
}
