// gpt2/reference_run.hpp: the reference run does not depend on how the compared run computes, and differences are found.

#include <cmath>
#include <limits>
#include <omp.h>

#include "common/base/json.hpp"
#include "gpt2/reference_run.hpp"
#include "gpt2/run_report.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// Three steps of a tiny model, with every option that could be forgotten: dropout, clipping, decay, and a schedule
/// that continues after the compared steps.
TrainingOptions tiny_run()
{
  TrainingOptions o;
  o.layers = 1, o.heads = 2, o.channels = 16, o.context = 16, o.vocabulary = 13;
  o.global_batch = 4, o.steps = 20, o.compare = 3;
  o.dropout = 0.1, o.clip = 0.5;
  o.schedule.warmup = 1, o.schedule.decay = Decay::cosine;
  return o;
}

Tokens text()
{
  std::vector<Token> tokens;
  for (int i = 0; i < 400; ++i) tokens.push_back(static_cast<Token>(i * i % 13));
  Tokens text;
  text.train = std::make_shared<MemoryTokens>(tokens);
  return text;
}

/// `deviation` and the number of failed checks that report_deviation() enters.
struct Told {
  nlohmann::json deviation;
  int failed = 0;
};

Told tell(const std::vector<double>& losses, const std::vector<float>& parameters, const ReferenceRun& reference,
          Sums arithmetic)
{
  RunRecord record;
  for (const double loss : losses) record.steps.push_back({.loss = loss});
  TrainingOptions options;
  options.arithmetic = arithmetic;
  Report report(false, "");
  report_deviation(report, record, reference, parameter_deviation(parameters, reference.parameters), options);
  report.finish();
  Told told{report.json()["deviation"]};
  for (const nlohmann::json& check : report.json()["checks"]) told.failed += check["pass"] ? 0 : 1;
  return told;
}

}  // namespace

TEST_CASE("reference_run: the same bits whatever the arithmetic, passes, recomputation and threads of the run")
{
  TrainingOptions options = tiny_run();
  const ReferenceRun first = reference_run(options, text());
  CHECK(first.losses.size() == 3);
  CHECK(first.parameters.size() == static_cast<std::size_t>(ParameterTable(options.config()).elements()));

  options.arithmetic = Sums::exact;
  options.micro_batch = 2;
  options.recompute_blocks = true;
  options.memory_limit.value = 1000;
  omp_set_num_threads(3);
  const ReferenceRun second = reference_run(options, text());
  omp_set_num_threads(1);
  CHECK(second.losses == first.losses);
  CHECK(second.parameters == first.parameters);
}

TEST_CASE("reference_run: every option that changes the numbers of a run changes them here")
{
  const ReferenceRun first = reference_run(tiny_run(), text());
  const auto changed = [&](auto change) {
    TrainingOptions options = tiny_run();
    change(options);
    return parameter_deviation(reference_run(options, text()).parameters, first.parameters).relative() > 0;
  };
  CHECK(changed([](TrainingOptions& o) { o.dropout = 0; }));
  CHECK(changed([](TrainingOptions& o) { o.clip = 0; }));
  CHECK(changed([](TrainingOptions& o) { o.seed = 2; }));
  CHECK(changed([](TrainingOptions& o) { o.steps = 10; }));  // the cosine ends earlier
  CHECK(changed([](TrainingOptions& o) { o.schedule.warmup = 2; }));
  CHECK(changed([](TrainingOptions& o) { o.adamw.weight_decay = 0; }));
  CHECK(changed([](TrainingOptions& o) { o.mask = "prefix:5"; }));
  CHECK_FALSE(changed([](TrainingOptions&) {}));
}

TEST_CASE("loss_deviation: the largest relative difference of a step; NaN where a loss is")
{
  CHECK(loss_deviation(std::vector{4.0, 2.5, 3.0}, std::vector{4.0, 2.0, 4.0}) == 0.25);
  CHECK(loss_deviation(std::vector{4.0, 2.0}, std::vector{4.0, 2.0}) == 0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isnan(loss_deviation(std::vector{4.0, nan, 3.0}, std::vector{4.0, 2.0, 4.0})));
  CHECK_THROWS_AS(loss_deviation(std::vector{4.0}, std::vector{4.0, 2.0}), Error);
}

TEST_CASE("parameter_deviation: norm of the difference over the norm of the whole, zero only for equal elements")
{
  const std::vector<float> reference{3, 0, 4, 0};
  CHECK(parameter_deviation(reference, reference).relative() == 0);
  CHECK(parameter_deviation(std::vector<float>{3, 0.5F, 4, 0}, reference).relative() == Approx(0.1));
  const float least = std::numeric_limits<float>::denorm_min();
  CHECK(parameter_deviation(std::vector<float>{3, least, 4, 0}, reference).relative() > 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(parameter_deviation(std::vector<float>{3, nan, 4, 0}, reference).relative()));
  CHECK_THROWS_AS(parameter_deviation(std::vector<float>{3}, reference), Error);
}

TEST_CASE("parameter_deviation: shards add up to the whole, to the bit and in any order")
{
  std::vector<float> reference, parameters;
  for (int i = 0; i < 1000; ++i) {
    reference.push_back(std::sin(static_cast<float>(i)));
    parameters.push_back(std::nextafter(reference.back(), i % 3 == 0 ? 2.0F : -2.0F));
  }
  const auto sums = [&](std::size_t first, std::size_t count) {
    return parameter_deviation(std::span(parameters).subspan(first, count),
                               std::span(reference).subspan(first, count));
  };
  ParameterDeviation added = sums(700, 300);
  for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 250}, {250, 450}}) {
    const ParameterDeviation shard = sums(first, count);
    added.squared_difference += shard.squared_difference;
    added.squared_norm += shard.squared_norm;
  }
  CHECK(added.relative() > 0);
  CHECK(added.relative() == sums(0, 1000).relative());
}

TEST_CASE(
    "report_deviation: a loss or a parameter that is off fails its check, in exact arithmetic by the last bit")
{
  const ReferenceRun reference{.losses = {5, 4}, .parameters = {0.6F, 0.8F}};
  const std::vector<double> losses{5, 4, 3};  // a run goes on after the compared steps
  for (const Sums sums : {Sums::fast, Sums::exact}) {
    const Told same = tell(losses, reference.parameters, reference, sums);
    CHECK(same.failed == 0);
    CHECK(same.deviation == nlohmann::json({{"steps", 2}, {"loss", 0.0}, {"parameters", 0.0}}));
    CHECK(tell({5, 4 + 5e-6, 3}, reference.parameters, reference, sums).failed == 1);
    CHECK(tell(losses, {0.6F, 0.80002F}, reference, sums).failed == 1);
  }
  const float next = std::nextafter(0.8F, 1.0F);
  const Told off = tell({5, 4 + 2e-6, 3}, {0.6F, next}, reference, Sums::fast);
  CHECK(off.failed == 0);
  CHECK(off.deviation["loss"].get<double>() == Approx(5e-7));
  CHECK(off.deviation["parameters"].get<double>() == Approx(static_cast<double>(next) - static_cast<double>(0.8F)));
  CHECK(tell({5, 4 + 2e-6, 3}, {0.6F, next}, reference, Sums::exact).failed == 2);
}
