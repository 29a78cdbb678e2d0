// The exercises of lesson 05 that are functions: the sequences of a rank, and the buckets that are alive.

#include <algorithm>

#include "common/base/error.hpp"
#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/judge/ranges.hpp"

namespace rankwise::judge {

namespace {

/// 05.2: the sequences of this rank.
const Exercise micro_batches("05.2", [](const Json& in) -> Json {
  GroupForTest with(Algorithm::ring);
  const BatchShape batch{.global_batch = in["G"], .micro_batch = in["B"], .sequence = 8};
  return {{"sequences", pairs_of(micro_batches_of_step(batch, with.group))}};
});

/// The buckets of make_buckets(); or, if tensors are replicated, one for each unit, and a last one for those tensors.
std::vector<Bucket> buckets_of(const ParameterTable& table, const Json& in)
{
  if (table.replicated().empty()) return make_buckets(table, type_of(in["type"]), in["bytes"]);
  std::vector<Bucket> buckets;
  for (std::int64_t unit = table.units().end(); unit-- > 0;)
    if (const Range elements = table.unit_elements(static_cast<int>(unit)); !elements.empty())
      buckets.push_back({{unit, 1}, elements});
  buckets.push_back({{0, 0}, table.replicated()});
  return buckets;
}

/// 05.3: two micro-batches, whose backward passes add numbers to the gradients of each unit and free each bucket when
/// it is complete. The answers are the gradients of every bucket then, and the memory at every unit. Without a bucket
/// for the embedding: whether that is an error.
const Exercise buckets_alive("05.3", [](const Json& in) -> Json {
  testing::Laboratory lab;
  const ParameterTable table(testing::tiny_config(in["layers"], 2, in["channels"], 6), {}, {0, -1},
                             in["replicated"]);
  std::vector<Bucket> buckets = buckets_of(table, in);
  const std::int64_t last = table.units().end() - 1;
  if (in["lost"].get<bool>()) buckets.pop_back();
  const GradientLayout layout{.elements = table.elements(), .type = type_of(in["type"])};
  BucketGradients gradients(lab.memory(), lab.stream(), table, buckets, layout);
  if (in["lost"].get<bool>()) {
    try {
      gradients.allocate(0);
    } catch (const Error&) {
      return {{"an error", true}, {"memory", bytes_of(lab.ledger())}};
    }
    return {{"an error", false}};
  }
  std::int64_t seed = in["seed"];
  Json values = Json::array(), digests = Json::array(), memory = Json::array();
  const auto add_to = [&](std::int64_t unit) {
    for (const Tensor& tensor : gradients.allocate(unit)) {
      const Tensor more = random_tensor(lab, tensor.type(), tensor.shape(), seed++);
      lab.kernels()->add(tensor, more);
    }
    memory.push_back(bytes_of(lab.ledger()));
  };
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    add_to(0);  // the head's gradient of the token embedding
    for (std::int64_t unit = last; unit >= 0; --unit) {
      add_to(unit);
      for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
        if (buckets[bucket].units.empty() ? unit != 0 : buckets[bucket].units.first != unit) continue;
        const Tensor sum = gradients.of(bucket).front();
        values.push_back(numbers(sum.slice({0, std::min<std::int64_t>(sum.elements(), 100)})));
        digests.push_back(digest(sum));
        gradients.free(bucket);
      }
    }
  }
  return {{"gradients", values}, {"digests of the gradients", digests}, {"memory", memory}};
});

}  // namespace

}  // namespace rankwise::judge
