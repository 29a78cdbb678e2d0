// The lifetime of gradients in lesson 05: from the unit that computes them to the message that has sent them.

#include <optional>

#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Units: embedding 704 elements, then (4,288 of attention, 8,416 of an MLP) twice, head 64.
const ModelConfig config = tiny_config(2, 4, 32, 6);
const ParameterTable table(config);
constexpr std::int64_t embedding = 704, token = 16 * 32, attention = 4'288, mlp = 8'416, head = 64;

StepPlan plan_of(std::int64_t bucket_bytes, Sums sums)
{
  return {table,          make_buckets(table, DType::f32, bucket_bytes), DType::f32, DType::f32, Arithmetic(sums),
          Algorithm::ring};
}

/// Gradients of buckets, and what counts them.
struct Alive {
  Alive(std::int64_t bucket_bytes, Sums sums)
      : plan(plan_of(bucket_bytes, sums)),
        buckets(plan.buckets),
        gradients(lab.memory(), lab.stream(), table, buckets, sums_of(plan))
  {
  }
  /// Elements that are alive.
  std::int64_t now() { return lab.ledger().current(Tier::device)[Category::gradients] / 4; }
  /// Most bytes that were.
  std::int64_t most() { return lab.ledger().peak(Tier::device)[Category::gradients]; }

  Laboratory lab;
  StepPlan plan;
  std::vector<Bucket> buckets;
  BucketGradients gradients;
};

}  // namespace

TEST_CASE("BucketGradients: a bucket has a buffer from its first unit on until it is freed")
{
  Alive alive(1, Sums::fast);  // a unit each
  CHECK(alive.now() == 0);
  alive.gradients.allocate(5);
  CHECK(alive.now() == head);
  alive.gradients.allocate(0);
  CHECK(alive.now() == head + embedding);
  alive.gradients.allocate(4);
  CHECK(alive.now() == head + embedding + mlp);
  alive.gradients.allocate(4);
  CHECK(alive.now() == head + embedding + mlp);
  alive.gradients.free(0);
  CHECK(alive.now() == embedding + mlp);
  alive.gradients.free(1);
  alive.gradients.allocate(0);
  CHECK(alive.now() == embedding);
  alive.gradients.free(5);
  CHECK(alive.now() == 0);
}

TEST_CASE("BucketGradients: backward passes add to zeroed tensors inside the bucket")
{
  for (const std::int64_t bytes : {1, 20'000, 1'000'000'000}) {
    Alive alive(bytes, Sums::fast);
    for (int pass = 0; pass < 2; ++pass) {
      const EmbeddingTensors first = embedding_tensors(alive.gradients.allocate(0));
      CHECK(alive.gradients.tied_to(first.token).raw() == first.token.raw());
      head_tensors(alive.gradients.allocate(5), first.token).norm_bias.span<float>()[0] = 9;
      for (const std::int64_t unit : {4, 2, 1}) alive.gradients.allocate(unit);
      branch_tensors(alive.gradients.allocate(3)).out_bias.span<float>()[5] = 7;
      first.position.span<float>()[1] = 8;
      double sum = 0;
      for (std::size_t b = 0; b < alive.buckets.size(); ++b) {
        const Tensor flat = alive.gradients.of(b)[0];
        REQUIRE(flat.elements() == alive.buckets[b].elements.count);
        for (std::int64_t i = 0; i < flat.elements(); ++i) {
          const std::int64_t element = alive.buckets[b].elements.first + i;
          const float value = flat.span<float>()[static_cast<std::size_t>(i)];
          sum += value;
          if (element == table.unit_elements(3).end() - 32 + 5) CHECK(value == 7);
          if (element == token + 1) CHECK(value == 8);
          if (element == table.elements() - 32) CHECK(value == 9);
        }
      }
      CHECK(sum == 24);  // all else is zero, in the second pass too
      for (std::size_t b = 0; b < alive.buckets.size(); ++b) alive.gradients.free(b);
    }
  }
}

TEST_CASE("BucketGradients: the head's gradient of the token embedding may be a separate sum")
{
  Alive alive(1, Sums::exact);
  alive.gradients.allocate(5);
  const Tensor first = alive.gradients.allocate(0)[0], second = alive.gradients.tied_to(first);
  CHECK(alive.now() == head + embedding + token);
  second.span<float>()[40] = 3;
  CHECK(first.span<float>()[40] == 0);
  CHECK(alive.gradients.of(0).size() == 1);
  REQUIRE(alive.gradients.of(5).size() == 2);
  CHECK(alive.gradients.of(5)[1].elements() == token);
  REQUIRE(alive.gradients.of(5, {40, 600}).size() == 2);
  CHECK(alive.gradients.of(5, {40, 600})[0].elements() == 600);
  CHECK(alive.gradients.of(5, {40, 600})[1].elements() == token - 40);  // what of it lies among these elements
  CHECK(alive.gradients.of(5, {40, 600})[1].span<float>()[0] == 3);
  CHECK(alive.gradients.of(5, {token, 100}).size() == 1);
  alive.gradients.free(0);
  CHECK(alive.now() == embedding + token);
  alive.gradients.free(5);
  CHECK(alive.now() == 0);
}

TEST_CASE("alive_bytes: the peak of the gradients alive when one bucket at a time is in flight")
{
  for (const std::int64_t bytes : {1, 256, 20'000, 33'920, 60'000, 1'000'000'000})
    for (const Sums sums : {Sums::fast, Sums::exact}) {
      INFO("bytes = " << bytes << ", sums = " << static_cast<int>(sums));
      Alive alive(bytes, sums);
      std::optional<std::size_t> on_its_way;
      alive.gradients.tied_to(alive.gradients.allocate(0)[0]);  // the head's
      for (std::int64_t unit = 5; unit >= 0; --unit) {
        alive.gradients.allocate(unit);
        for (std::size_t b = 0; b < alive.buckets.size(); ++b) {
          if (alive.buckets[b].units.first != unit) continue;
          if (on_its_way) alive.gradients.free(*on_its_way);
          on_its_way = b;
        }
      }
      CHECK(alive.most() == alive_bytes(alive.plan));
    }
  CHECK(alive_bytes(plan_of(1, Sums::fast)) == 4 * (mlp + attention + embedding));
}

namespace {

/// A unit of each branch, and one more for tensors of at most 128 elements; the head has no others.
std::vector<Bucket> branches_of(const ParameterTable& small_replicated)
{
  std::vector<Bucket> buckets;
  for (int unit = 4; unit >= 0; --unit) buckets.push_back({{unit, 1}, small_replicated.unit_elements(unit)});
  buckets.push_back({{0, 0}, small_replicated.replicated()});
  return buckets;
}

}  // namespace

TEST_CASE(
    "BucketGradients: tensors that are replicated have a bucket without units, with a buffer from any first unit "
    "on")
{
  const ParameterTable small_replicated(config, {}, {0, -1}, 128);
  const std::int64_t replicated = small_replicated.replicated().count, of_an_mlp = 2 * 32 * 128;
  REQUIRE(replicated == 2 * (6 * 32 + 96 + 128) + head);
  const StepPlan plan{small_replicated, branches_of(small_replicated), DType::f32,
                      DType::f32,       Arithmetic(Sums::fast),        Algorithm::ring};
  Laboratory lab;
  BucketGradients gradients(lab.memory(), lab.stream(), small_replicated, plan.buckets, sums_of(plan));
  const auto alive = [&] { return lab.ledger().current(Tier::device)[Category::gradients] / 4; };

  const EmbeddingTensors first = embedding_tensors(gradients.allocate(0));
  CHECK(alive() == embedding + replicated);
  head_tensors(gradients.allocate(5), first.token).norm_bias.span<float>()[1] = 3;
  CHECK(alive() == embedding + replicated);
  const BranchTensors of_mlp = branch_tensors(gradients.allocate(4));
  CHECK(alive() == embedding + replicated + of_an_mlp);
  of_mlp.out_bias.span<float>()[2] = 4;
  of_mlp.out_weight.span<float>()[5] = 5;
  const Tensor flat = gradients.of(5)[0];
  REQUIRE(flat.elements() == replicated);
  CHECK(lab.kernels()->squared_norm(flat).value() == 9 + 16);
  for (const Parameter& p : small_replicated.entries()) {
    if (!small_replicated.replicated().contains(p.elements.first)) continue;
    const Tensor tensor = flat.slice({p.elements.first - small_replicated.replicated().first, p.elements.count});
    if (p.name == "ln_f.bias") CHECK(tensor.span<float>()[1] == 3);
    if (p.name == "h.1.mlp.c_proj.bias") CHECK(tensor.span<float>()[2] == 4);
  }
  gradients.allocate(3);
  CHECK(lab.ledger().peak(Tier::device)[Category::gradients] == alive_bytes(plan));
  for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) gradients.free(bucket);
  CHECK(alive() == 0);
}
