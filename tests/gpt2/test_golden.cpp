#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "gpt2/model.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// f32 against figures computed in f64 by another program. Ten steps in f32 by that program itself come within 1e-6.
constexpr double tolerance = 1e-5;

nlohmann::json read_golden_file()
{
  std::ifstream file(std::string(RANKWISE_SOURCE_DIR) + "/tests/gpt2/golden/tiny_gpt2.json");
  return nlohmann::json::parse(file);
}

ModelConfig config_of(const nlohmann::json& model)
{
  return {"golden",
          model.at("layers"),
          model.at("heads"),
          model.at("channels"),
          model.at("context"),
          model.at("vocabulary"),
          {}};
}

/// The run that scripts/pytorch/golden_figures.py describes, and its closed forms of parameters and tokens.
struct GoldenRun {
  GoldenRun(Laboratory& laboratory, const nlohmann::json& document)
      : lab(laboratory),
        golden(document),
        config(config_of(document.at("model"))),
        table(config),
        shape{DType::f32, document.at("batch"), config.context, {}, false},
        model({config, lab.kernels()}),
        work(lab.memory(), config, shape),
        kept(lab.memory(), config, shape, work),
        parameters(lab.zeros(DType::f32, {table.elements()})),
        gradients(lab.zeros(DType::f32, {table.elements()})),
        first_moment(lab.zeros(DType::f32, {table.elements()})),
        second_moment(lab.zeros(DType::f32, {table.elements()}))
  {
    for (const Parameter& p : table.entries())
      for (std::int64_t i = 0; i < p.shape.elements(); ++i) {
        const auto x = static_cast<double>(i);
        const double wave = 0.1 * std::sin(0.7 * x + 0.05 * x * x + 1.3 * p.number);
        parameters.data<float>()[p.elements.first + i] =
            static_cast<float>((p.initial == Initial::one ? 1 : 0) + wave);
      }
  }

  /// Inputs and targets of step @p s.
  MicroBatch batch(std::int64_t s) const
  {
    const auto token = [&](std::int64_t b, std::int64_t t) {
      return static_cast<Token>((7 * (s % 2) + 5 * b * b + 3 * t * t + b * t) % config.vocabulary);
    };
    Batch data{shape.B, shape.T, {}, {}, 0};
    for (std::int64_t b = 0; b < shape.B; ++b)
      for (std::int64_t t = 0; t < shape.T; ++t) {
        const bool counted = s % 2 != 0 || (s / 2 + b + 2 * t) % 5 != 0;
        data.inputs.push_back(token(b, t));
        data.targets.push_back(counted ? token(b, t + 1) : -1);
        data.valid_tokens += counted ? 1 : 0;
      }
    return place(kept, lab.stream(), data, {0, shape.B}, s);
  }

  /// Loss and gradient of step @p s; the gradient of the *sum* of losses is left in `gradients`.
  LossSum gradient(std::int64_t s) const
  {
    lab.stream().zero(gradients);
    return forward_backward(model, model_tensors(table, parameters), model_tensors(table, gradients), kept, work,
                            lab.stream(), batch(s));
  }

  /// The norm of the gradient of the mean loss.
  double norm(const LossSum& loss) const
  {
    return std::sqrt(lab.kernels()->squared_norm(gradients).value()) / static_cast<double>(loss.valid_tokens);
  }

  /// AdamW after step @p s.
  void update(std::int64_t s, const LossSum& loss) const
  {
    const nlohmann::json& o = golden.at("optimizer");
    const double clip = std::min(1.0, o.at("clip").get<double>() / (norm(loss) + 1e-6));
    for (const Parameter& p : table.entries())
      lab.kernels()->adamw(parameters.slice(p.elements), first_moment.slice(p.elements),
                           second_moment.slice(p.elements), gradients.slice(p.elements),
                           {.learning_rate = o.at("learning_rate"),
                            .beta1 = o.at("beta1"),
                            .beta2 = o.at("beta2"),
                            .epsilon = o.at("epsilon"),
                            .weight_decay = p.decays ? o.at("weight_decay").get<double>() : 0,
                            .gradient_scale = clip / static_cast<double>(loss.valid_tokens),
                            .number = s + 1});
  }

  /// All natural elements of @p flat in table order, and what the file has under @p key.
  std::pair<std::vector<double>, std::vector<double>> both(const Tensor& flat, const char* key) const
  {
    std::vector<double> found, expected;
    for (const Parameter& p : table.entries()) {
      const nlohmann::json& tensor = golden.at("tensors").at(static_cast<std::size_t>(p.number));
      REQUIRE(tensor.at("name") == p.name);
      REQUIRE(static_cast<std::int64_t>(tensor.at(key).size()) == p.shape.elements());
      for (const double value : tensor.at(key)) expected.push_back(value);
      for (const double value : values_of(flat.slice({p.elements.first, p.shape.elements()})))
        found.push_back(value);
    }
    return {found, expected};
  }

  Laboratory& lab;
  const nlohmann::json& golden;
  ModelConfig config;
  ParameterTable table;
  ActivationShape shape;
  Model model;
  Workspace work;
  Activations kept;
  Tensor parameters, gradients, first_moment, second_moment;
};

}  // namespace

TEST_CASE("golden: loss and gradient of the first step are PyTorch's, tensor by tensor")
{
  const nlohmann::json golden = read_golden_file();
  Laboratory lab;
  const GoldenRun run(lab, golden);
  const LossSum loss = run.gradient(0);
  CHECK(loss.mean() == Approx(golden.at("losses")[0].get<double>()).epsilon(tolerance));
  CHECK(run.norm(loss) == Approx(golden.at("gradient_norms")[0].get<double>()).epsilon(tolerance));

  std::vector<double> mean = values_of(run.gradients);
  for (double& value : mean) value /= static_cast<double>(loss.valid_tokens);
  assign(run.gradients, mean);
  const auto [found, expected] = run.both(run.gradients, "gradient");
  CHECK(relative_error(found, expected) < tolerance);
  for (const Parameter& p : run.table.entries()) {
    INFO(p.name);
    const std::vector<double> tensor = golden.at("tensors").at(static_cast<std::size_t>(p.number)).at("gradient");
    CHECK(relative_error(run.gradients.slice({p.elements.first, p.shape.elements()}), tensor) < tolerance);
  }
}

TEST_CASE("golden: losses, gradient norms and parameters over ten steps of AdamW are PyTorch's")
{
  const nlohmann::json golden = read_golden_file();
  Laboratory lab;
  const GoldenRun run(lab, golden);
  const Tensor start = lab.copied(run.parameters);
  for (std::int64_t s = 0; s < golden.at("steps"); ++s) {
    INFO("step " << s);
    const auto i = static_cast<std::size_t>(s);
    const LossSum loss = run.gradient(s);
    CHECK(loss.valid_tokens == golden.at("valid_tokens").at(i).get<std::int64_t>());
    CHECK(loss.mean() == Approx(golden.at("losses").at(i).get<double>()).epsilon(tolerance));
    CHECK(run.norm(loss) == Approx(golden.at("gradient_norms").at(i).get<double>()).epsilon(tolerance));
    run.update(s, loss);
  }
  const auto [found, expected] = run.both(run.parameters, "final");
  CHECK(relative_error(found, expected) < tolerance);
  CHECK(relative_error(run.both(start, "final").first, expected) > 0.1);  // they have come a long way
}
