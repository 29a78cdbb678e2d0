#pragma once

#include <cstdint>
#include <string>

#include "common/messages/algorithm.hpp"
#include "common/messages/communication.hpp"
#include "common/messages/topology.hpp"
#include "common/program/session.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// The options that all lessons share, and the part of a step that rank r of N computes.

namespace rankwise {

/// Algorithm of the collectives if --collectives does not name one: halving if sums continue a tree, else the ring.
Algorithm default_algorithm(const Arithmetic& arithmetic);
/// Refuses an algorithm that adds in another order than the arithmetic requires.
/// @throws UserError  in exact arithmetic, for all algorithms but halving and shared.
void check_order(Algorithm algorithm, const Arithmetic& arithmetic);

/// Options of training and of messages. A lesson derives its own options from these.
struct LessonOptions : TrainingOptions {
  CommunicationOptions messages;         ///< algorithms, transport and checks of messages
  std::int64_t check_every = 10;         ///< steps between comparisons of replicated parameters; 0: only at the end
  bool elastic = false;                  ///< go on without ranks that die
  int copies = 1;                        ///< with elastic: ranks that have a copy of each shard
  int ranks = 0;                         ///< `--ranks`: number of ranks of a dry run; 0: those that were started
  std::string record;                    ///< file for the results of each rank, number by number; empty: none
  std::string record_values;             ///< patterns of tensors whose values it has too; empty: none
  bool check_against_reference = false;  ///< true compares them with the reference run
  std::string html;                      ///< page to write; empty: none
  bool watch = false;                    ///< show on the terminal what all ranks do
  std::string script;  ///< file for the actions of each rank in the steps that a dry run rehearses; empty: none

  /// True if the run records its results.
  bool records() const { return !record.empty() || check_against_reference; }
  /// Terms of a PartialSum of all replicas: in exact arithmetic the sequences of the global batch, in the order of a tree.
  std::int64_t leaves() const { return Arithmetic(arithmetic).continues_tree() ? global_batch : 0; }
  /// Algorithm of all collectives: --collectives, or the default for --arithmetic.
  Algorithm algorithm() const { return messages.algorithm(default_algorithm(Arithmetic(arithmetic))); }
  /// Nodes of N ranks: those of the job; for another N a single node, divided by --ranks-per-node.
  const Topology& topology(int N) const;
};

/// A rank's part of a step: what rank r of N computes.
struct Division {
  Layout layout;   ///< degrees of parallelism
  RankOf replica;  ///< number of this rank's replica among those that divide the global batch
  Range
      sequences;  ///< sequences of that replica in the global batch; only their number where they are not adjacent
  BatchShape batch;       ///< G, B and T
  ActivationShape shape;  ///< shape of a micro-batch on this rank, with its shard of every layer

  /// Micro-batches of the replica in a step, once check_options() has accepted B.
  std::int64_t micro_batches() const { return sequences.count / batch.micro_batch; }
};

/// Divides the global batch among the layout's replicas: each has the same number of sequences, or in exact arithmetic
/// the first ones one more. The shape is that of whole layers and sequences; other axes divide it afterwards.
/// @param replica  number of the rank's replica.
Division divide_batch(const LessonOptions& options, const Layout& layout, int replica, const BatchShape& batch);
/// The default, data parallelism: N replicas, for any N. Without --micro-batch a rank computes its sequences in one
/// micro-batch. A lesson whose ranks divide a step otherwise declares an overload for its options.
/// @param options  as check_lesson() has accepted them for N ranks.
Division divide(const LessonOptions& options, RankOf rank);

/// check_options() of training, with B of the division and its degrees of parallelism.
/// @throws UserError  for the first violation.
void check_options(const LessonOptions& options, const Division& division);

/// Declares the options of training and of messages, --check-every and --ranks.
void declare(OptionTable& table, LessonOptions& options);
/// Declares --record, --check-against and --html, which are among those.
void declare_output(OptionTable& table, LessonOptions& options);
/// Declares --elastic, for a lesson that can run on any number of ranks.
/// @param shards  true if a rank holds a shard of the model, so that --copies is declared too; else it has all of it.
void declare_elastic(OptionTable& table, LessonOptions& options, bool shards);
/// Refuses --elastic where N ranks cannot go on without some of them.
/// @throws UserError  if so, with the reason.
void check_elastic(const LessonOptions& options, int N);
/// Options of experts, and whether they do something.
std::vector<Effect> effects_of(const ExpertConfig& experts);
/// Refuses options that do nothing in a run of @p steps steps.
/// @throws UserError  for the first of them, with the reason and the remedy.
void check_effects(const OptionTable& table, const LessonOptions& options, std::int64_t steps);
/// The divisors of a number in ascending order, with commas between them, for a remedy.
std::string divisors(std::int64_t number);
/// The default: accepts all options. A lesson whose own options can be invalid declares an overload that refuses them.
/// @param N  number of ranks.
/// @throws UserError  if N ranks cannot run with these options.
inline void check_lesson(const LessonOptions& options, int N)
{
  static_cast<void>(options), static_cast<void>(N);
}

}  // namespace rankwise
