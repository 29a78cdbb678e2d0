#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/messages/communication_queue.hpp"
#include "lessons/parallel/context/key_ring.hpp"

/// @file
/// The gradients of keys and values, to which the queries of all ranks contribute.

namespace rankwise {

/// Brings the gradients of a block of keys and values to the rank that has it. Numbers have the accumulator type.
class KeyGradients {
 public:
  virtual ~KeyGradients() = default;

  /// Begins with no gradients.
  virtual void begin() = 0;
  /// Where the gradient that a run of queries of this rank gives a run of keys is to be written, (R, 2 C), before it is
  /// added().
  /// @param block    the block that this rank computes with now.
  /// @param query    0 or 1, which of its own runs.
  /// @param key      0 or 1, which run of the block.
  virtual Tensor next(const KeyBlock& block, std::size_t query, std::size_t key) = 0;
  /// The gradient is there.
  virtual void added(const KeyBlock& block, std::size_t query, std::size_t key) = 0;
  /// This rank has finished with a block.
  virtual void finished(const KeyBlock& block) = 0;
  /// (R, 2 C) the sum over all queries for one of this rank's own runs of keys. Ends the pass.
  virtual std::array<Tensor, TokenRuns::of_a_rank> total() = 0;
};

/// Fast arithmetic: the gradients of a block travel behind it, and each rank adds its own.
///
///     rank 0    keys of block 0 ->  3  ->  2  ->  1             after c hops the gradients of a block are at home
///               gradients       0 ->  3  ->  2  ->  1  -> 0
class TravellingGradients final : public KeyGradients {
 public:
  /// @param ring  which brings the blocks. Both arguments outlive it.
  TravellingGradients(const Run& run, KeyRing& ring);

  void begin() override;
  Tensor next(const KeyBlock&, std::size_t, std::size_t) override { return pair_.tensor(); }
  void added(const KeyBlock& block, std::size_t query, std::size_t key) override;
  void finished(const KeyBlock& block) override;
  std::array<Tensor, TokenRuns::of_a_rank> total() override;

  /// Bytes of its scratch: 3 R 2 C numbers. The gradients that travel are two blocks.
  static std::int64_t workspace_bytes(const ModelConfig& config, const ActivationShape& shape);

 private:
  const Run& run_;
  KeyRing& ring_;
  Buffer pair_, here_;                  // (R, 2 C) of a pair of runs; (2, R, 2 C) of this rank's queries
  std::array<Buffer, 2> travelling_{};  // (2, R, 2 C) of all queries that the block has met
  Pending passing_;
};

/// Exact arithmetic: a sum over queries is a tree, whose leaves must not be added in the order of the ring. Each rank
/// keeps what each of its two runs of queries gives each run of keys, sends all of it home at once, and the rank that
/// has the keys adds in the order of the tree.
class ReturnedGradients final : public KeyGradients {
 public:
  /// @param runs   of the c ranks.
  /// @param group  the c ranks; outlives it.
  ReturnedGradients(const Run& run, const TokenRuns& runs, Group& group);

  void begin() override;
  Tensor next(const KeyBlock& block, std::size_t query, std::size_t key) override;
  void added(const KeyBlock&, std::size_t, std::size_t) override {}
  void finished(const KeyBlock&) override {}
  std::array<Tensor, TokenRuns::of_a_rank> total() override;

  /// The exchange: 4 c blocks of R 2 C numbers. Its buffers are as large, once for what is sent, once for what arrives.
  static CollectiveShape exchange(const ModelConfig& config, const ActivationShape& shape, const TokenRuns& runs,
                                  Algorithm algorithm);

 private:
  const Run& run_;
  TokenRuns runs_;
  Group& group_;
  Buffer sent_, received_;  // (c, 2 keys, 2 queries, R, 2 C)
};

}  // namespace rankwise
