// The cost of lesson 08's messages: formulas beside measured traffic and published figures.

#include "lessons/frame/costs.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"
#include "lessons/parallel/tensor/split_plan.hpp"
#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/one_machine.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Which messages a pass has.
struct Kind {
  bool divides_rows = false, regather = false, recompute = false;
};
constexpr Kind kinds[] = {{}, {false, false, true}, {true}, {true, false, true}, {true, true}, {true, true, true}};

/// A plan of a model among t parts.
SplitPlan plan_of(const ModelConfig& config, std::int64_t B, std::int64_t T, Part part, const Kind& kind,
                  std::int64_t micro_batches = 1, DType type = DType::f32, Algorithm algorithm = Algorithm::ring)
{
  const Part tokens = kind.divides_rows ? part : Part{};
  return {config, {type, B, T, part, kind.recompute, tokens, kind.regather}, micro_batches, algorithm};
}

/// Bytes of rows that a step of GPT-2 with so many layers sends by ring, without what RowGradients sends.
std::int64_t row_bytes(std::int64_t layers, int t, const Kind& kind, DType type = DType::f32)
{
  ModelConfig config = preset("gpt2");
  config.layers = layers;
  const SplitPlan plan = plan_of(config, 4, 1024, {0, t}, kind, 1, type);
  const std::int64_t numbers = RowGradients::elements(ParameterTable(config, {0, t}), plan.shape);
  const Topology topology = one_machine(t);
  return tensor_parallel_traffic(plan, topology, 0).bytes -
         expected_traffic({"all-reduce", Algorithm::ring, DType::f32, numbers}, topology, 0).bytes;
}

}  // namespace

TEST_CASE("tensor_parallel_traffic: equals the measured traffic of a micro-batch, in every layout")
{
  constexpr std::int64_t B = 2, T = 12, C = 32;
  const ModelConfig config = tiny_config(2, 4, C, T);
  const ModelConfig six = tiny_config(2, 6, 48, T);
  const ModelConfig& model = world().ranks() == 3 ? six : config;
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::tree, Algorithm::halving, Algorithm::shared})
    for (const DType type : {DType::f32, DType::bf16})
      for (const Kind& kind : kinds) {
        if (algorithm == Algorithm::halving && world().ranks() == 3) continue;
        INFO(name_of(algorithm) << ", " << name_of(type) << ", divides rows " << kind.divides_rows << ", regather "
                                << kind.regather << ", recompute " << kind.recompute);
        const SplitPlan plan = plan_of(model, B, T, {world().rank(), world().ranks()}, kind, 1, type, algorithm);
        Laboratory lab;
        GroupForTest test(algorithm);
        TimeLedger time;
        const Workspace work(lab.memory(), model, plan.shape);
        TensorParallelMessages messages(test.group, plan.shape, model.channels, work, lab.kernels(), time);
        const ParameterTable table(model, plan.shape.part);
        RowGradients gradients(test.memory, lab.stream(), table, plan.shape, lab.kernels());
        const Tensor rows = lab.zeros(type, {B * T, model.channels}), number = lab.zeros(DType::f32, {B * T});
        const Tensor own = rows.slice({0, plan.shape.shared_rows() * model.channels});
        const Tensor flat = lab.zeros(DType::f32, {table.elements()});
        const std::int64_t branches = 2 * model.layers;
        const auto sums = [&](std::int64_t times) {
          while (times-- > 0) messages.sum(rows);
        };
        const auto gathers = [&](std::int64_t times) {
          while (times-- > 0) messages.gather(own, rows);
        };
        test.traffic.clear();
        sums(1 + branches);  // the embedding, and each branch forwards
        gathers(branches + 1);
        messages.largest(number);
        messages.sum_numbers(number);
        messages.sum_numbers(number);
        sums(1 + branches);  // head and branches backwards
        gathers(branches + 1);
        if (kind.recompute) sums(branches);
        if (kind.recompute) gathers(branches);
        if (kind.regather) gathers(branches + 1);
        gradients.add_to(flat, test.group);
        const Traffic measured = test.traffic.total();
        CHECK(measured == tensor_parallel_traffic(plan, test.group.topology(), world().rank()));
        SplitPlan three = plan;
        three.micro_batches = 3;
        CHECK(tensor_parallel_traffic(three, test.group.topology(), world().rank()).bytes == 3 * measured.bytes);
      }
}

TEST_CASE("tensor_parallel_traffic: the published figures of a layer, 4 x 2 (t-1)/t B T C elements by ring")
{
  constexpr std::int64_t n = 4 * 1024 * 768;  // B T C
  for (const int t : {2, 4}) {
    CAPTURE(t);
    const auto of_layer = [&](const Kind& kind, DType type = DType::f32) {
      return row_bytes(2, t, kind, type) - row_bytes(1, t, kind, type);
    };
    CHECK(of_layer({}) == 4 * 8 * n * (t - 1) / t);
    CHECK(of_layer({true}) == 4 * 8 * n * (t - 1) / t);                 // four halves each way
    CHECK(of_layer({true, true}) == 4 * 10 * n * (t - 1) / t);          // and normalised rows once more
    CHECK(of_layer({false, false, true}) == 4 * 12 * n * (t - 1) / t);  // recomputation: two sums more
    CHECK(of_layer({true, false, true}) == 4 * 12 * n * (t - 1) / t);
    CHECK(of_layer({true, true, true}) == 4 * 14 * n * (t - 1) / t);
    CHECK(of_layer({}, DType::bf16) == 2 * 8 * n * (t - 1) / t);
  }
  const auto layer = [](int t, const Kind& kind) { return row_bytes(2, t, kind) - row_bytes(1, t, kind); };
  CHECK(layer(2, {}) == 50'331'648);
  CHECK(layer(2, {true}) == 50'331'648);
  CHECK(layer(2, {true, true}) == 62'914'560);
  CHECK(layer(4, {}) == 75'497'472);
  CHECK(layer(4, {true, true}) == 94'371'840);
  CHECK(layer(1, {}) == 0);
}

TEST_CASE(
    "tensor_parallel_traffic: beside the layers embedding and head, and three numbers a token in place of logits")
{
  constexpr std::int64_t R = 4 * 1024, n = R * 768;
  for (const int t : {2, 4}) {
    CAPTURE(t);
    const auto beside = [&](const Kind& kind) { return 2 * row_bytes(1, t, kind) - row_bytes(2, t, kind); };
    const std::int64_t numbers =
        4 * ((t - 1) * R + 2 * 2 * R * (t - 1) / t);  // the largest: one of every other part
    CHECK(beside({}) == 4 * 4 * n * (t - 1) / t + numbers);
    CHECK(beside({true}) == 4 * 4 * n * (t - 1) / t + numbers);
    CHECK(beside({true, true}) == 4 * 5 * n * (t - 1) / t + numbers);
    CHECK(numbers < 4 * R * 50264 / 1000);  // of what the logits would be
  }
}

TEST_CASE("gradient_sums: a rank's gradients once a step, and the tied embedding's separate sum")
{
  LessonOptions options;
  options.messages.collectives = "ring";
  for (const int t : {1, 2, 4}) {
    const ParameterTable table(preset("nano"), {0, t});
    const auto sent = [&](int ranks) {
      const auto calls = gradient_sums(options, gradient_layout(table, DType::f32), 0);
      return expected_traffic(calls, one_machine(ranks), 0).bytes;
    };
    options.arithmetic = Sums::fast;
    CHECK(sent(2) == 4 * table.elements());
    options.arithmetic = Sums::exact;
    CHECK(sent(2) == 4 * (table.elements() + 256 * 64 / t));
    CHECK(sent(1) == 0);
  }
}

TEST_CASE("describe_tensor_parallel_traffic: has the factor of the layout")
{
  const auto text = [](const Kind& kind) {
    return describe_tensor_parallel_traffic(plan_of(preset("nano"), 4, 64, {0, 2}, kind).shape);
  };
  CHECK_THAT(text({}), StartsWith("8 (t-1)/t B T C"));
  CHECK_THAT(text({true}), StartsWith("8 (t-1)/t B T C"));
  CHECK_THAT(text({true, true}), StartsWith("10 (t-1)/t B T C"));
  CHECK_THAT(text({true, true, true}), StartsWith("14 (t-1)/t B T C"));
  CHECK_THAT(text({false, false, true}), StartsWith("12 (t-1)/t B T C"));
}
