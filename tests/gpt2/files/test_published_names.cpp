#include <string>
#include <vector>

#include "gpt2/files/published_names.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/bert/tiny_bert.hpp"

using namespace rankwise;
using namespace rankwise::testing;

TEST_CASE("published_tensors: a GPT-2 is published as the table has it")
{
  const ParameterTable table(tiny_config(2, 2, 12, 9));
  for (const Parameter& p : table.entries()) {
    const std::vector<PublishedTensor> tensors = published_tensors(Architecture::gpt2, p);
    REQUIRE(tensors.size() == 1);
    CHECK(tensors[0].name == p.name);
    CHECK(tensors[0].same_layout());
    CHECK(tensors[0].elements() == p.shape.elements());
    CHECK(tensors[0].shape().size() == static_cast<std::size_t>(p.shape.rank()));
    for (std::int64_t i = 0; i < p.shape.elements(); ++i) REQUIRE(tensors[0].place(i) == i);
  }
}

TEST_CASE("published_tensors: each element of a BERT's parameter is in one tensor; linear layers are (out, in)")
{
  const ParameterTable table(tiny_bert_config(1, 2, 12, 9));
  for (const Parameter& p : table.entries()) {
    INFO(p.name);
    std::vector<int> held(static_cast<std::size_t>(p.shape.elements()));
    const std::vector<PublishedTensor> tensors = published_tensors(Architecture::bert, p);
    for (const PublishedTensor& tensor : tensors) {
      for (std::int64_t i = 0; i < tensor.elements(); ++i) ++held.at(static_cast<std::size_t>(tensor.place(i)));
      const bool linear = p.shape.rank() == 2 && p.unit > 0;
      CHECK(tensor.transposed == linear);
      if (linear) CHECK(tensor.shape() == std::vector{p.shape[1] / std::ssize(tensors), p.shape[0]});
    }
    CHECK(std::ranges::all_of(held, [](int times) { return times == 1; }));
    CHECK(tensors.size() == (p.name.find("qkv") == std::string::npos ? 1 : 3));
  }
  const PublishedTensor key = published_tensors(Architecture::bert, table.entries()[7])[1];
  CHECK(key.name == "bert.encoder.layer.0.attention.self.key.weight");
  CHECK(key.place(0) == 12);          // row 0 of 36 columns, of which k has the second 12
  CHECK(key.place(1) == 36 + 12);     // its next input
  CHECK(key.place(12) == 12 + 1);     // its next output
  CHECK(key.place(143) == 431 - 12);  // its last element
}

TEST_CASE("converted_name: norms have gamma and beta in files from TensorFlow")
{
  CHECK(converted_name("bert.embeddings.LayerNorm.weight") == "bert.embeddings.LayerNorm.gamma");
  CHECK(converted_name("bert.embeddings.LayerNorm.bias") == "bert.embeddings.LayerNorm.beta");
  CHECK(converted_name("cls.predictions.bias") == "cls.predictions.bias");
}
