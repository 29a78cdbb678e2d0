#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/messages/communicator.hpp"

/// @file
/// Checks that all messages of a run were received: one that no rank receives would otherwise be lost silently.

namespace rankwise {

/// Number of messages of one kind between this rank and another one.
struct MessageCount {
  /// Value of `peer` by which a rank reports that it could not count the program's own MPI messages.
  static constexpr int not_counted = -1;

  std::string group{};         ///< as "world"; "MPI" for calls of MPI in the program itself
  std::vector<int> members{};  ///< ranks in the job of the group; empty for "MPI"
  std::string name{};          ///< name of the collective, as "broadcast"; empty outside of any
  std::string where{};         ///< file and line that made the call or started the message; empty for "MPI"
  int peer = 0;                ///< the other rank, as its rank in the job
  std::int64_t sent = 0;       ///< messages sent to it since the start
  std::int64_t received = 0;   ///< messages received from it since the start
};

/// Compares the messages that ranks sent with those that the others received.
/// @param counts  counts of each rank.
/// @return  a line about the first messages that were not received, with ranks, numbers, group, collective and
///          source line; empty if there are none.
std::string lost_messages(const std::vector<std::vector<MessageCount>>& counts);

/// Lost messages of a job that has finished its work. All its ranks make this call together.
/// @param counts  counts of this rank.
std::string lost_messages(const Communicator& world, const std::vector<MessageCount>& counts);

}  // namespace rankwise
