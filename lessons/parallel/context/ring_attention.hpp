#pragma once

#include <memory>
#include <vector>

#include "lessons/parallel/context/context_attention.hpp"
#include "lessons/parallel/context/key_gradients.hpp"
#include "lessons/parallel/context/key_ring.hpp"
#include "lessons/parallel/context/sums_over_keys.hpp"

/// @file
/// Ring attention: queries stay, keys and values travel.

namespace rankwise {

/// The sizes from which its memory and its messages follow.
struct RingSizes {
  ModelConfig config;     ///< the model
  ActivationShape shape;  ///< sizes of one run of tokens
  TokenRuns runs;         ///< those of a sequence
  Arithmetic arithmetic;  ///< whether sums continue a tree
  Algorithm algorithm;    ///< the collectives'

  /// Bytes of scratch.
  std::int64_t workspace_bytes() const;
  /// Bytes of what travels: two blocks of keys and values, and as many numbers of gradients, or in exact arithmetic
  /// those that return.
  std::int64_t message_bytes() const;
  /// Collectives in the backward pass of a layer.
  std::vector<CollectiveShape> exchanges() const;
  /// Messages round the ring in a layer's forward pass, or in its backward pass.
  Traffic passes(bool backward) const;
};

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
  std::int64_t channels_;  // those of this rank's heads
  KeyRing ring_;
  std::vector<SumsOverKeys> of_keys_;  // by run of queries
  std::unique_ptr<KeyGradients> gradients_;
};

}  // namespace rankwise
