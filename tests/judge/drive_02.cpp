// The exercises of lesson 02: collectives by hand.

#include <algorithm>

#include "common/collectives/binomial.hpp"
#include "common/collectives/bruck.hpp"
#include "common/collectives/pairwise.hpp"
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

/// Elements that say where they are from and where they are going: 10^6 from + 10^4 to + i.
std::vector<double> addressed(const Blocks& to, int from)
{
  std::vector<double> values;
  for (std::size_t rank = 0; rank < to.size(); ++rank)
    for (std::int64_t i = 0; i < to[rank].count; ++i)
      values.push_back(static_cast<double>(1'000'000 * from + 10'000 * static_cast<std::int64_t>(rank) + i));
  return values;
}

/// What an all-to-all answers: all that this rank received, and the memory for messages.
Json answer_of(const std::vector<double>& received, const GroupForTest& with)
{
  return {{"received", received}, {"bytes of scratch", with.ledger.peak(Tier::device)[Category::communication]}};
}

/// 02.8: pairwise exchange. The count from rank q to rank s is in row q, column s.
const Exercise pairwise("02.8", [](const Json& in) -> Json {
  GroupForTest with(Algorithm::ring);
  const auto counts = in["counts"].get<std::vector<std::vector<std::int64_t>>>();
  const auto r = static_cast<std::size_t>(world().rank());
  std::vector<std::int64_t> from_others;
  for (const std::vector<std::int64_t>& of_rank : counts) from_others.push_back(of_rank[r]);
  const Blocks to = blocks_of(counts[r]), from = blocks_of(from_others);
  std::vector<double> sent = addressed(to, world().rank());
  std::vector<double> received(static_cast<std::size_t>(from.back().end()), -1);
  pairwise_all_to_all(Tensor(std::span<double>(sent), {std::ssize(sent)}), to,
                      Tensor(std::span<double>(received), {std::ssize(received)}), from, with.group);
  return answer_of(received, with);
});

/// 02.9: Bruck's all-to-all.
const Exercise bruck("02.9", [](const Json& in) -> Json {
  GroupForTest with(Algorithm::ring);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(world().ranks()), in["b"]);
  std::vector<double> sent = addressed(blocks_of(counts), world().rank()), received(sent.size(), -1);
  bruck_all_to_all(Tensor(std::span<double>(sent), {std::ssize(sent)}),
                   Tensor(std::span<double>(received), {std::ssize(received)}), with.group);
  return answer_of(received, with);
});

}  // namespace

}  // namespace rankwise::judge
