#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/messages/communicator.hpp"
#include "common/messages/layers/recording_transport.hpp"
#include "common/program/report.hpp"

/// @file
/// The messages of a collective: sender, receiver and time, merged from the records of all ranks.

namespace rankwise {

/// A message, with its start in a model of the machine.
struct ScheduledMessage {
  int from;          ///< rank that sends
  int to;            ///< rank that receives
  std::string what;  ///< contents, as its sender described them
  double start_s;    ///< time at which it leaves
};

/// All messages of a collective.
struct TransferSchedule {
  std::vector<ScheduledMessage> messages;  ///< sorted by sender, then by time
  double end_s = 0;                        ///< time at which the last rank is done
};

/// Replays recorded messages in a model. A message of b bytes takes alpha + beta b and begins when both sides have
/// started it. A rank sends one message at a time and simultaneously receives one at a time; everything else takes
/// no time. With alpha = 1 and beta = 0 the times count the steps of the algorithm.
/// @param logs  events of one collective, by rank; every message that is sent is received.
/// @param line  alpha and beta.
/// @throws Error  if a rank waits for a message that no rank sends.
/// @source  the single-port model of Hockney 1994, doi:10.1016/S0167-8191(06)80021-9.
TransferSchedule play(const std::vector<std::vector<MessageLog::Event>>& logs, const AlphaBeta& line);

/// Gathers the events of all ranks, by rank. All ranks make this call.
std::vector<std::vector<MessageLog::Event>> gather_events(const std::vector<MessageLog::Event>& own,
                                                          const Communicator& communicator);

/// An element that encodes its shard and its rank, for a vector of one element per shard. A sum of such elements
/// shows which ranks have been added, and how often.
/// @param shard, rank  0 <= shard < 2^20 and 0 <= rank < 8.
std::int64_t marked_shard(int shard, int rank);

/// Contents of a message of marked_shard() elements: "0,2" for two shards, "1(0+3)" for shard 1 summed over ranks 0
/// and 3, "1(all)" for shard 1 summed over all ranks.
/// @param sums  whether to name the ranks.
std::string describe_shards(const Tensor& message, int ranks, bool sums);

/// Contents of a message of an all-to-all, whose marked_shard() elements have in place of the shard the rank that their
/// block is for: "01,32" for the blocks of rank 0 for rank 1 and of rank 3 for rank 2.
std::string describe_blocks(const Tensor& message);

/// Table of steps, with a line for each rank and a column for each step: "1(0+3) -> 2" is sent to rank 2.
/// @param schedule  of play() with alpha = 1 and beta = 0.
std::vector<Line> step_table(const TransferSchedule& schedule, int ranks);

}  // namespace rankwise
