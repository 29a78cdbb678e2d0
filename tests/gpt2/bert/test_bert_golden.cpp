#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/gpt2/bert/tiny_bert.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

nlohmann::json read_golden_file()
{
  std::ifstream file(std::string(RANKWISE_SOURCE_DIR) + "/tests/gpt2/golden/tiny_bert.json");
  return nlohmann::json::parse(file);
}

ModelConfig config_of(const nlohmann::json& model)
{
  ModelConfig config{"golden",
                     model.at("layers"),
                     model.at("heads"),
                     model.at("channels"),
                     model.at("context"),
                     model.at("vocabulary")};
  config.architecture = Architecture::bert;
  config.mask = {Mask::Kind::full, 0};
  return config;
}

/// The batch that scripts/pytorch/golden_figures.py describes.
PairBatch golden_pairs(const ModelConfig& config, std::int64_t B)
{
  const std::int64_t T = config.context, special = config.vocabulary - special_tokens;
  const auto token = [&](std::int64_t b, std::int64_t t) {
    return static_cast<Token>((5 * b * b + 3 * t * t + b * t) % special);
  };
  PairBatch pairs;
  pairs.B = B;
  pairs.T = T;
  for (std::int64_t b = 0; b < B; ++b) {
    const std::int64_t length = T - 3 * b % 5;
    for (std::int64_t t = 0; t < T; ++t) {
      const bool inside = t < length, predicted = inside && (b + 2 * t) % 3 == 0;
      pairs.inputs.push_back(inside ? token(b, t) : static_cast<Token>(config.vocabulary - 1));
      pairs.segments.push_back(inside && 2 * t > length ? 1 : 0);
      pairs.targets.push_back(predicted ? token(b, t + 1) : -1);
      pairs.predicted += predicted ? 1 : 0;
    }
    pairs.lengths.push_back(static_cast<Token>(length));
    pairs.labels.push_back(b % 3 == 1 ? 1 : 0);
  }
  pairs.pairs = B;
  return pairs;
}

/// Both losses and all gradients in one type, held against the file.
void check_golden(Kernels kernels, DType type, double loss_tolerance, double gradient_tolerance)
{
  INFO(name_of(type));
  const nlohmann::json golden = read_golden_file();
  const ModelConfig config = config_of(golden.at("model"));
  const std::int64_t B = golden.at("batch");
  REQUIRE(golden.at("model").at("norm_epsilon") == bert_norm_epsilon);

  Laboratory lab(std::move(kernels));
  const TinyBert bert(lab, config, {type, B, config.context});
  std::vector<double> values(static_cast<std::size_t>(bert.table.elements()));
  for (const Parameter& p : bert.table.entries())
    for (std::int64_t i = 0; i < p.shape.elements(); ++i) {
      const auto x = static_cast<double>(i);
      const double wave = 0.1 * std::sin(0.7 * x + 0.05 * x * x + 1.3 * p.number);
      values[static_cast<std::size_t>(p.elements.first + i)] =
          static_cast<float>((p.initial == Initial::one ? 1 : 0) + wave);
    }
  assign(bert.parameters, values);

  const PairBatch pairs = golden_pairs(config, B);
  const auto masked = static_cast<double>(pairs.predicted);
  REQUIRE(golden.at("masked_tokens") == pairs.predicted);
  const BertLoss loss = bert.forward_backward(bert.placed(pairs, masked / static_cast<double>(B)));
  CHECK(loss.tokens.mean() == Approx(golden.at("masked_loss").get<double>()).epsilon(loss_tolerance));
  CHECK(loss.pairs.mean() == Approx(golden.at("next_sentence_loss").get<double>()).epsilon(loss_tolerance));

  std::vector<double> gradient = bert.whole_gradient();
  for (double& value : gradient) value /= masked;
  for (const Parameter& p : bert.table.entries()) {
    INFO(p.name);
    const nlohmann::json& tensor = golden.at("tensors").at(static_cast<std::size_t>(p.number));
    REQUIRE(tensor.at("name") == p.name);
    CHECK(relative_error(elements_of(gradient, p), tensor.at("gradient").get<std::vector<double>>()) <
          gradient_tolerance);
  }
}

}  // namespace

TEST_CASE("golden BERT: losses and gradients are those of BertForPreTraining, tensor by tensor, in f64")
{
  check_golden(make_reference_kernels(), DType::f64, 1e-8, 1e-8);  // the file has nine digits
}

TEST_CASE("golden BERT: losses and gradients are those of BertForPreTraining, tensor by tensor, in f32")
{
  // f32 against f64. The library's own f32 comes within 1e-7 of the losses and within 1e-6 of all gradients together.
  check_golden(make_reference_kernels(), DType::f32, 1e-6, 1e-5);
  check_golden(make_cpu_kernels(), DType::f32, 1e-6, 1e-5);
}
