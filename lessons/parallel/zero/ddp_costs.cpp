#include "lessons/parallel/zero/ddp_costs.hpp"

namespace rankwise {

std::vector<CollectiveShape> gradient_sums(const DdpOptions& options)
{
  const ParameterTable table(options.config());
  std::vector<CollectiveShape> calls =
      gradient_sums(options, gradient_layout(table, options.gradients), options.leaves());
  // The sum of all gradients is made in pieces.
  CollectiveShape of_piece = calls.front();
  calls.erase(calls.begin());
  for (const Range& piece : pieces_of(table, options.gradients, options.strategy, options.bucket.value)) {
    of_piece.count = piece.count;
    calls.push_back(of_piece);
  }
  return calls;
}

Costs costs(const DdpOptions& options, RankOf rank)
{
  std::vector<CollectiveShape> calls = gradient_sums(options);
  const Traffic sent = expected_traffic(calls, options.topology(rank.ranks), rank.rank);
  calls.push_back({"broadcast", options.algorithm(), DType::f32, ParameterTable(options.config()).elements()});
  CategoryBytes bytes = unsharded_bytes(options, divide(options, rank));
  bytes[Category::communication] = message_bytes(options, calls, rank);
  return costs_on_device(
      bytes, {{"world", "a step", sent, "2 (N-1)/N of the gradients" + describe_subtrees(options, rank)}});
}

}  // namespace rankwise
