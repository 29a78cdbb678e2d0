#include "lessons/parallel/zero/ddp_costs.hpp"

#include "gpt2/gradient_sum.hpp"

namespace rankwise {

std::vector<CollectiveShape> gradient_sums(const DdpOptions& options)
{
  const ParameterTable table(options.config());
  std::vector<CollectiveShape> calls;
  for (const Range& piece : pieces_of(table, options.gradients, options.strategy, options.bucket.value))
    calls.push_back({"all-reduce", options.algorithm(), options.gradients, piece.count});
  const Range tied = gradient_layout(table, options.gradients).tied;
  if (Arithmetic(options.arithmetic).separates_tied())
    calls.push_back({"all-reduce", options.algorithm(), options.gradients, tied.count});
  for (CollectiveShape& call : calls) call.leaves = options.leaves();
  return calls;
}

Costs costs(const DdpOptions& options, RankOf rank)
{
  std::vector<CollectiveShape> calls = gradient_sums(options);
  const Traffic sent = expected_traffic(calls, options.topology(rank.ranks), rank.rank);
  calls.push_back({"broadcast", options.algorithm(), DType::f32, ParameterTable(options.config()).elements()});
  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = unsharded_bytes(options, divide(options, rank));
  bytes[Category::communication] = message_bytes(options, calls, rank);
  costs.most = costs.kept;
  costs.sent = {{"world", "a step", sent, "2 (N-1)/N of the gradients" + describe_subtrees(options, rank)}};
  return costs;
}

}  // namespace rankwise
