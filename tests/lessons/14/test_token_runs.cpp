// Which tokens each context-parallel rank has, and how many pairs of a query and a key.

#include <set>
#include <vector>

#include "lessons/parallel/context/token_runs.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

constexpr std::int64_t T = 48;

/// Pairs of all queries of a rank with all keys.
std::int64_t pairs_of_rank(const Mask& mask, const TokenRuns& runs, int rank)
{
  std::int64_t pairs = 0;
  for (const std::int64_t query : runs.of(rank))
    for (std::int64_t key = 0; key < runs.count(); ++key)
      pairs += visible_pairs(mask, T, runs.tokens(query), runs.tokens(key));
  return pairs;
}

}  // namespace

TEST_CASE("TokenRuns: each token is on one rank, and the earlier run comes first")
{
  for (const TokenOrder order : {TokenOrder::zigzag, TokenOrder::contiguous})
    for (const int c : {1, 2, 3, 4, 8}) {
      const TokenRuns runs{order, T, c};
      std::set<std::int64_t> tokens;
      for (int rank = 0; rank < c; ++rank) {
        CHECK(runs.of(rank)[0] < runs.of(rank)[1]);
        for (const std::int64_t run : runs.of(rank))
          for (std::int64_t t = runs.tokens(run).first; t < runs.tokens(run).end(); ++t) tokens.insert(t);
      }
      CHECK(tokens.size() == T);
      CHECK(*tokens.rbegin() == T - 1);
    }
}

TEST_CASE(
    "TokenRuns: in zig-zag order all ranks have the same number of causal pairs, in contiguous order the last has "
    "most")
{
  for (const int c : {2, 3, 4, 8}) {
    const TokenRuns zigzag{TokenOrder::zigzag, T, c}, contiguous{TokenOrder::contiguous, T, c};
    for (int rank = 0; rank < c; ++rank) {
      CHECK(pairs_of_rank({}, zigzag, rank) == T * (T + 1) / 2 / c);
      // A rank's T/c queries see on average the keys up to their middle: rank T/c + (T/c + 1)/2 of them.
      const std::int64_t length = T / c;
      CHECK(pairs_of_rank({}, contiguous, rank) == length * length * rank + length * (length + 1) / 2);
    }
  }
}

TEST_CASE("visible_pairs: those of each mask, one by one")
{
  for (const Mask& mask : {Mask{}, Mask{Mask::Kind::prefix, 10}, Mask{Mask::Kind::full}})
    for (const Range queries : {Range{0, 12}, Range{12, 24}, Range{36, 12}})
      for (const Range keys : {Range{0, 6}, Range{6, 18}, Range{30, 18}}) {
        std::int64_t pairs = 0;
        for (std::int64_t q = queries.first; q < queries.end(); ++q)
          for (std::int64_t k = keys.first; k < keys.end(); ++k) pairs += k < mask.visible_keys(q, T) ? 1 : 0;
        CHECK(visible_pairs(mask, T, queries, keys) == pairs);
      }
}
