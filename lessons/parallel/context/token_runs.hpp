#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/base/partition.hpp"
#include "gpt2/config.hpp"

/// @file
/// Which tokens of a sequence each context-parallel rank has.

namespace rankwise {

/// `--order`: which runs of tokens a rank has.
enum class TokenOrder : std::uint8_t {
  zigzag,      ///< one from the front and one from the back
  contiguous,  ///< two neighbours
};

/// A sequence of T tokens in 2 c equal runs, two on each of c ranks. With c = 4:
///
///     run          0 1 2 3 4 5 6 7          A causal query sees the keys up to its own. In zig-zag order the early
///     zig-zag      0 1 2 3 3 2 1 0          run of a rank, which sees few keys, goes with a late one, which sees many:
///     contiguous   0 0 1 1 2 2 3 3          all ranks have the same work.
///
/// @source  Brandon et al. 2023 (striped attention) for the imbalance; Dubey et al. 2024 (Llama 3), section 3.3.2,
///          for the 2 c runs.
struct TokenRuns {
  TokenOrder order = TokenOrder::zigzag;  ///< which runs a rank has
  std::int64_t T = 0;                     ///< tokens of a sequence, divisible by 2 c
  int ranks = 1;                          ///< c

  /// Runs of a rank.
  static constexpr std::size_t of_a_rank = 2;

  /// Number of runs: 2 c.
  constexpr std::int64_t count() const { return std::int64_t{of_a_rank} * ranks; }
  /// Tokens of a run.
  constexpr std::int64_t length() const { return T / count(); }
  /// The runs of rank @p rank, the earlier one first.
  constexpr std::array<std::int64_t, of_a_rank> of(int rank) const
  {
    if (order == TokenOrder::contiguous) return {2 * rank, 2 * rank + 1};
    return {rank, count() - 1 - rank};
  }
  /// The tokens of a run.
  constexpr Range tokens(std::int64_t run) const { return {run * length(), length()}; }
};

/// TokenRuns::of_a_rank, for products with sizes.
inline constexpr auto runs_of_a_rank = static_cast<std::int64_t>(TokenRuns::of_a_rank);

/// Number of pairs of a query and a key that it sees, for a run of queries and a run of keys of a sequence of T tokens.
constexpr std::int64_t visible_pairs(const Mask& mask, std::int64_t T, Range queries, Range keys)
{
  std::int64_t pairs = 0;
  for (std::int64_t query = queries.first; query < queries.end(); ++query)
    pairs += std::clamp<std::int64_t>(mask.visible_keys(query, T) - keys.first, 0, keys.count);
  return pairs;
}

}  // namespace rankwise
