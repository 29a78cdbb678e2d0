#pragma once

#include <cstdint>

#include "common/messages/algorithm.hpp"
#include "common/messages/communication.hpp"
#include "common/messages/topology.hpp"
#include "common/program/session.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// The options that all lessons share, and what follows from them for rank r of N.

namespace rankwise {

/// Algorithm by which ranks add, where --collectives leaves it open: halving where sums continue a tree, else the ring.
Algorithm default_algorithm(const Arithmetic& arithmetic);
/// Refuses an algorithm by which ranks would add in another order than the arithmetic asks for.
/// @throws UserError  in exact arithmetic, for all but halving and shared.
void check_order(Algorithm algorithm, const Arithmetic& arithmetic);

/// Options of training and of messages. A lesson derives its own options from these; what it divides in another way than
/// data parallelism does, it says in functions of the same names.
struct LessonOptions : TrainingOptions {
  CommunicationOptions messages;  ///< how ranks talk to each other
  std::int64_t check_every = 10;  ///< steps between comparisons of what is replicated; 0: only at the end
  int ranks = 0;  ///< `--ranks`: of a dry run for another number of ranks than were started; 0: those

  /// Degrees of parallelism of N ranks: all of them are replicas.
  Layout layout(int N) const { return {.dp = N}; }
  /// G, B and T on N ranks. Without --micro-batch a rank computes its share of the global batch at once.
  BatchShape batch(int N) const { return TrainingOptions::batch(share(N)); }
  /// Shape of a micro-batch on one of N ranks.
  ActivationShape activation_shape(RankOf rank) const
  {
    return TrainingOptions::activation_shape(share(rank.ranks));
  }
  /// Sequences of the global batch that one of N replicas computes.
  std::int64_t share(int N) const { return global_batch / N; }
  /// Algorithm of all collectives: --collectives, or the one that suits --arithmetic.
  Algorithm algorithm() const { return messages.algorithm(default_algorithm(Arithmetic(arithmetic))); }
  /// Nodes of N ranks: those of the job, or for another N one machine, cut by --ranks-per-node.
  Topology topology(int N) const;
};

/// Declares them: those of training, of messages, --check-every and --ranks.
void declare(OptionTable& table, LessonOptions& options);
/// Refuses nothing: a lesson has a function of this name for its own options where there is something to refuse.
/// @param N  ranks.
/// @throws UserError  for what N ranks cannot do.
inline void check_lesson(const LessonOptions& options, int N)
{
  static_cast<void>(options), static_cast<void>(N);
}

}  // namespace rankwise
