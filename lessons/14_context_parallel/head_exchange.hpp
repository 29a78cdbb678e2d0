#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/collectives/cost.hpp"
#include "lessons/parallel/context/context_attention.hpp"

/// @file
/// Context parallelism by all-to-all: between the layers a rank has all heads of some tokens, inside attention some heads
/// of all tokens.

namespace rankwise {

/// Attention of H / c heads over all tokens. Exchanges before and after it turn rows into heads and back: q, k, v and
/// the output, and their gradients.
/// @source  Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.
class HeadExchange final : public ContextAttention {
 public:
  /// @param runs   of the c ranks.
  /// @param group  the c ranks. All arguments outlive it.
  HeadExchange(Run& run, const TokenRuns& runs, Group& group);

  void forward(const Branch& branch, std::size_t i, std::span<TokenRun> own) override;
  void backward(const Branch& branch, std::size_t i, std::span<TokenRun> own) override;

  /// Bytes that attention keeps of H / c heads: for each layer s 4 B T C / c, and a B T H / c for log-sum-exp.
  static std::int64_t kept_bytes(const ModelConfig& config, const ActivationShape& shape, const TokenRuns& runs);
  /// Bytes of the gradients of H / c heads: s 4 B T C / c.
  static std::int64_t workspace_bytes(const ModelConfig& config, const ActivationShape& shape,
                                      const TokenRuns& runs);
  /// An exchange of q, k and v (@p sections 3) or of the output (1).
  static CollectiveShape exchange(const ModelConfig& config, const ActivationShape& shape, Algorithm algorithm,
                                  std::int64_t sections);

 private:
  /// Results of attention of H / c heads, kept for the backward pass.
  struct Heads {
    Buffer qkv;          // (B, T, 3 C / c)
    Buffer y;            // (B, T, C / c)
    Buffer log_sum_exp;  // (B, H / c, T)
  };
  const Heads& heads_of(std::size_t i) const { return kept_[run_.shape.recompute ? 0 : i / 2]; }
  MicroBatch whole(MicroBatch batch) const;
  AttentionShape shape_of(const Branch& branch, const MicroBatch& batch) const;
  void charge(std::int64_t passes, const char* what);
  // Tensors (R, n C) of this rank's runs become (B, T, n C / c) of all tokens of its heads; and back.
  void to_heads(const Tensor& of_heads, const std::vector<Tensor>& of_runs);
  void to_tokens(const std::vector<Tensor>& of_runs, const Tensor& of_heads);
  // What is exchanged is (c, 2 runs, R, n C / c).
  static std::int64_t block_of(int rank, std::size_t k)
  {
    return rank * runs_of_a_rank + static_cast<std::int64_t>(k);
  }
  Matrix columns(const Tensor& all, std::int64_t s, int rank) const;
  Matrix exchanged(const Tensor& all, std::int64_t s, int rank, std::size_t k) const;
  void for_each_section(const std::vector<Tensor>& of_runs,
                        const std::function<void(std::size_t, std::int64_t, int)>& use) const;
  void for_each_piece(const Tensor& of_heads, const Tensor& exchanged,
                      const std::function<void(const Tensor&, const Tensor&)>& use) const;

  Run& run_;
  TokenRuns runs_;
  Group& group_;
  std::vector<Heads> kept_;  // one for each layer, or a single one with recomputation
  Buffer dy_, dqkv_;         // their gradients
  Buffer sent_, received_;   // q, k and v, or less, on their way
};

}  // namespace rankwise
