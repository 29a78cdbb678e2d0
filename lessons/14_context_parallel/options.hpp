#pragma once

#include <vector>

#include "common/messages/mesh.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/parallel/context/token_runs.hpp"

/// @file
/// The options of context parallelism.

namespace rankwise {

/// `--attention`: how queries meet the keys of other ranks.
enum class AttentionBy : std::uint8_t {
  ring,        ///< keys and values travel from rank to rank
  all_to_all,  ///< each rank exchanges its tokens of all heads for all tokens of some heads
};

/// Options of N = dp c ranks: c neighbours divide each sequence, and dp groups of them divide the batch.
struct ContextParallelOptions : LessonOptions {
  int cp = 0;                                 ///< c; 0: all ranks
  TokenOrder order = TokenOrder::zigzag;      ///< which runs of tokens a rank has
  AttentionBy attention = AttentionBy::ring;  ///< how queries meet keys

  /// c of N ranks.
  int context_ranks(int N) const { return cp > 0 ? cp : N; }
  /// The runs of tokens of a sequence on N ranks.
  TokenRuns runs(int N) const { return {order, batch(1).sequence, context_ranks(N)}; }
  /// Axes of N ranks, the outermost first.
  std::vector<Axis> axes(int N) const { return {{"dp", N / context_ranks(N)}, {"cp", context_ranks(N)}}; }
};

/// The c ranks of a group compute the same sequences. Without --micro-batch they compute all of them in one micro-batch;
/// where sums continue a tree, one sequence, because they run over the tokens of a sequence first.
/// @return  with the shape of one of the two runs of tokens of a micro-batch.
Division divide(const ContextParallelOptions& options, RankOf rank);
/// Declares the options of all lessons and those of context parallelism.
void declare(OptionTable& table, ContextParallelOptions& options);
/// Refuses sequences, heads, or micro-batches that c ranks cannot divide.
/// @throws UserError  with what would be possible.
void check_lesson(const ContextParallelOptions& options, int N);

}  // namespace rankwise
