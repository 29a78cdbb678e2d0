// Exercises of lesson 08: which part of each tensor a rank has, and the bytes that it sends.

#include "lessons/parallel/tensor/split_plan.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/judge/driver.hpp"
#include "tests/one_machine.hpp"

namespace rankwise::judge {

namespace {

/// 08.2: the rectangles of each tensor that each rank stores, without empty ones.
const Exercise rectangles("08.2", [](const Json& in) -> Json {
  ModelConfig config = testing::tiny_config(in["layers"], in["heads"], in["channels"], in["context"]);
  config.vocabulary = in["vocabulary"];
  Json all = Json::array();
  for (int part = 0; part < in["t"]; ++part) {
    const ParameterTable table(config, {part, in["t"]});
    for (const Parameter& parameter : table.entries()) {
      Json slabs = Json::array();
      for (const Slab& slab : table.slabs(parameter))
        if (!slab.rows.empty() && !slab.columns.empty())
          slabs.push_back({slab.rows.first, slab.rows.count, slab.columns.first, slab.columns.count,
                           slab.stored_row, slab.stored_column});
      all.push_back({{"rank", part}, {"tensor", parameter.name}, {"rectangles", slabs}});
    }
  }
  return {{"stored", all}};
});

/// 08.3: what each rank sends in a step to the ranks that have other parts.
const Exercise bytes("08.3", [](const Json& in) -> Json {
  const ModelConfig config = testing::tiny_config(in["layers"], in["heads"], in["channels"], in["T"]);
  Json ranks = Json::array();
  for (int index = 0; index < in["t"]; ++index) {
    const Part part{index, in["t"]};
    ActivationShape shape{.type = type_of(in["type"]),
                          .B = in["B"],
                          .T = in["T"],
                          .part = part,
                          .recompute = in["recompute"],
                          .tokens = in["divides_rows"] ? part : Part{},
                          .regather = in["regather"]};
    if (in["units"][1] > 0) shape.units = {in["units"][0], in["units"][1]};
    SplitPlan plan{config, shape, in["micro_batches"], Algorithm::ring};
    for (const Json& numbers : in["row_sums"]) plan.of_row_sums.push_back(numbers);
    const Traffic sent = tensor_parallel_traffic(plan, testing::one_machine(part.count), index);
    ranks.push_back({{"messages", sent.messages}, {"bytes", sent.bytes}});
  }
  return {{"sent by rank", ranks}};
});

}  // namespace

}  // namespace rankwise::judge
