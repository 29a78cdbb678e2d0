#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/messages/communicator.hpp"
#include "common/messages/layers/recording_transport.hpp"
#include "common/program/report.hpp"

/// @file
/// What went from whom to whom and when: the records of all ranks put together.

namespace rankwise {

/// A message, with the time that it takes in a model of the machine.
struct ScheduledMessage {
  int from;            ///< number in the job
  int to;              ///< number in the job
  std::string what;    ///< as its sender described it
  double start_s = 0;  ///< when it leaves
  double end_s = 0;    ///< when it has arrived
};

/// All messages of a collective.
struct TransferSchedule {
  std::vector<ScheduledMessage> messages;  ///< by sender, and in the order in which they left it
  double end_s = 0;                        ///< when the last rank is done
};

/// Plays recorded messages again in a model: a message of b bytes takes alpha + beta b, a rank sends one at a time and
/// receives one at a time (both at once), and everything else takes no time. It begins when both sides have started it.
/// With alpha = 1 and beta = 0 the times count the steps of the algorithm.
/// @param logs  the events of one collective, by rank; every message that is sent is received.
/// @throws Error  when a rank waits for a message that nobody sends.
/// @source  the single-port model of Hockney 1994, doi:10.1016/S0167-8191(06)80021-9.
TransferSchedule play(const std::vector<std::vector<MessageLog::Event>>& logs, const AlphaBeta& line);

/// The events of all ranks, by rank; all ranks make this call.
std::vector<std::vector<MessageLog::Event>> gather_events(const std::vector<MessageLog::Event>& own,
                                                          const Communicator& communicator);

/// Element s of a vector in which every element is a shard: the first tells which and who is in it.
/// Sums of such elements tell which ranks have been added, and how often.
/// @param shard, rank  0 <= shard < 2^20 and 0 <= rank < 8.
std::int64_t marked_shard(int shard, int rank);

/// What a message holds whose elements are marked shards, as "0,2" or "1(0+3)": the shards, and the ranks in the sum;
/// "(all)" for all of them.
/// @param sums  whether to name the ranks.
std::string describe_shards(const Tensor& message, int ranks, bool sums);

/// The table of steps: a line a rank, a column a step, "1(0+3) -> 2" for what rank sends.
/// @param schedule  of play() with alpha = 1 and beta = 0.
std::vector<Line> step_table(const TransferSchedule& schedule, int ranks);

}  // namespace rankwise
