// The exercises of lesson 02: collectives by hand.

#include <algorithm>

#include "common/collectives/binomial.hpp"
#include "common/collectives/ring.hpp"
#include "lessons/02_collectives/naive_all_reduce.hpp"
#include "lessons/02_collectives/textbook_ring.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/judge/driver.hpp"

namespace rankwise::judge {

namespace {

/// Values whose sums tell which ranks are in them: element i of rank r is (1 + i mod 8) 2^(4 r) / 8.
std::vector<double> values_by_rank(std::int64_t n, int rank)
{
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<double>(1 + i % 8) * static_cast<double>(std::int64_t{1} << (4 * rank)));
  return values;
}

/// 02.1: the ring's reduce-scatter. The answer is this rank's shard.
const Exercise ring("02.1", [](const Json& in) -> Json {
  GroupForTest with(Algorithm::ring);
  std::vector<double> values = values_by_rank(in["n"], world().rank());
  const Tensor all(values.data(), DType::f64, {static_cast<std::int64_t>(values.size())});
  const std::vector<Share> shards = shards_of(all.elements(), world().ranks());
  ring_reduce_scatter_sum(all, shards, with.group);
  const Range own = shards[static_cast<std::size_t>(world().rank())].front();
  return {{"shard", numbers(all.slice({own.first, std::min<std::int64_t>(own.count, 300)}))},
          {"digest of the shard", digest(all.slice(own))}};
});

/// 02.2: the binomial broadcast from any root. The answer is all that this rank has.
const Exercise broadcast("02.2", [](const Json& in) -> Json {
  GroupForTest with(Algorithm::ring);
  std::vector<double> values = values_by_rank(in["n"], world().rank());
  const Tensor all(values.data(), DType::f64, {static_cast<std::int64_t>(values.size())});
  binomial_broadcast(all, in["root"], with.group);
  return {{"values", numbers(all)}};
});

/// 02.7: the whole ring. The answer has the memory for messages that it took, too.
const Exercise textbook("02.7", [](const Json& in) -> Json {
  GroupForTest with(Algorithm::ring);
  std::vector<double> values = values_by_rank(in["n"], world().rank());
  const Tensor all(values.data(), DType::f64, {static_cast<std::int64_t>(values.size())});
  textbook_ring_all_reduce_sum(all, with.group);
  return {{"values", numbers(all.slice({0, std::min<std::int64_t>(all.elements(), 300)}))},
          {"digest of the values", digest(all)},
          {"bytes of scratch", with.ledger.peak(Tier::device)[Category::communication]}};
});

/// 02.3: the formulas of the naive all-reduce.
const Exercise naive("02.3", [](const Json& in) -> Json {
  const NaiveCost cost = naive_cost(in["bytes"], in["ranks"], in["rank"], {in["alpha"], in["beta"]});
  return {{"messages", cost.sent.messages}, {"bytes", cost.sent.bytes}, {"time", cost.time_s}};
});

}  // namespace

}  // namespace rankwise::judge
