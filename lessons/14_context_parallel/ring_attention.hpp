#pragma once

#include <memory>
#include <vector>

#include "lessons/14_context_parallel/context_attention.hpp"
#include "lessons/14_context_parallel/key_gradients.hpp"
#include "lessons/14_context_parallel/key_ring.hpp"
#include "lessons/14_context_parallel/sums_over_keys.hpp"

/// @file
/// Ring attention: queries stay, keys and values travel.

namespace rankwise {

/// Attention of this rank's queries over keys and values that pass from rank to rank while it computes. No rank holds
/// more than two blocks of keys, and none a matrix of all tokens.
/// @source  Liu et al. 2023 (ring attention), section 3.
class RingAttention final : public ContextAttention {
 public:
  /// @param runs   of the c ranks.
  /// @param group  the c ranks. All arguments outlive it.
  RingAttention(Run& run, const TokenRuns& runs, Group& group);

  void forward(const Branch& branch, std::size_t i, std::span<TokenRun> own) override;
  void backward(const Branch& branch, std::size_t i, std::span<TokenRun> own) override;

 private:
  /// Number of pairs of run @p query of this rank and run @p key of a block.
  std::int64_t pairs(const TokenRun& query, const KeyBlock& block, std::size_t key) const;

  Run& run_;
  TokenRuns runs_;
  KeyRing ring_;
  std::vector<SumsOverKeys> of_keys_;  // by run of queries
  std::unique_ptr<KeyGradients> gradients_;
};

}  // namespace rankwise
