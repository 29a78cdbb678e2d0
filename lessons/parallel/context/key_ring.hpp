#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "common/messages/communication_queue.hpp"
#include "lessons/parallel/context/context_attention.hpp"

/// @file
/// Keys and values on their way round the ranks.

namespace rankwise {

/// The keys and values of one rank's two runs, on the rank where they are now.
struct KeyBlock {
  int hop = 0;                                            ///< hops that it has made
  int owner = 0;                                          ///< rank whose tokens these are
  std::array<std::int64_t, TokenRuns::of_a_rank> runs{};  ///< numbers of its two runs
  std::array<Tensor, TokenRuns::of_a_rank> kv{};          ///< (R, 2 C) of each
};

/// A ring of c ranks, in which every rank passes what it has to the next one.
///
///     hop     0        1        2        3          rank r has block (r - hop) mod c
///     rank 0  block 0  block 3  block 2  block 1    the next block arrives while the rank computes with this one,
///     rank 1  block 1  block 0  block 3  block 2    in the second of two buffers
class KeyRing {
 public:
  /// @param runs   of the c ranks.
  /// @param group  the c ranks. All arguments outlive it.
  KeyRing(Run& run, const TokenRuns& runs, Group& group);

  /// Begins with this rank's own keys and values.
  /// @param own  the rank's runs, whose branch @p i has q, k, v.
  KeyBlock begin(std::span<TokenRun> own, std::size_t i);
  /// Starts to pass the block on, unless it has met all ranks.
  Pending pass_on(const KeyBlock& block);
  /// The block that has arrived.
  KeyBlock next(const KeyBlock& block) const;
  /// Starts to send a tensor to the next rank and to receive one of the same size from the previous rank.
  Pending pass(const Tensor& sent, const Tensor& received, const std::string& what);

  /// c.
  int ranks() const { return runs_.ranks; }

  /// Elements of a block: 2 R 2 C.
  static std::int64_t elements(const ModelConfig& config, const ActivationShape& shape);

 private:
  KeyBlock block(int hop) const;

  Run& run_;
  TokenRuns runs_;
  int rank_;
  std::array<Buffer, 2> blocks_;  // (2, R, 2 C)
  CommunicationQueue queue_;      // a second thread, which sends them
};

}  // namespace rankwise
