// The exercise of lesson 03 that is a function: buckets.

#include "lessons/parallel/zero/buckets.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/judge/ranges.hpp"

namespace rankwise::judge {

namespace {

/// 03.2: the buckets of a table, which has the units of a whole model or some of them.
const Exercise buckets("03.2", [](const Json& in) -> Json {
  const ModelConfig config = testing::tiny_config(in["layers"], 2, in["channels"], 6);
  const ParameterTable table(config, {}, range_of(in["units"]), in["replicated"]);
  Json units = Json::array(), elements = Json::array();
  for (const Bucket& bucket : make_buckets(table, type_of(in["type"]), in["bytes"])) {
    units.push_back(pair_of(bucket.units));
    elements.push_back(pair_of(bucket.elements));
  }
  return {{"units", units}, {"elements", elements}};
});

}  // namespace

}  // namespace rankwise::judge
