#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/messages/communicator.hpp"

/// @file
/// Whether all messages of a run were received: a message that no rank receives would otherwise be lost without a word.

namespace rankwise {

/// Communication of one kind between this rank and another one.
struct MessageCount {
  /// Instead of a peer, with which a rank says that it could not count what the program itself did over MPI.
  static constexpr int not_counted = -1;

  std::string group{};         ///< as "world"; "MPI" for calls of MPI in the program itself
  std::vector<int> members{};  ///< of the group, by their numbers in the job; empty for "MPI"
  std::string name{};          ///< of the collective, as "broadcast"; empty outside of any
  std::string where{};         ///< file:line that called it, or started the message; empty for "MPI"
  int peer = 0;                ///< the other rank, by its number in the job
  std::int64_t sent = 0;       ///< to it, since the start
  std::int64_t received = 0;   ///< from it
};

/// Compares what ranks sent with what the others received.
/// @param counts  by rank.
/// @return  a line for the first messages that were not received, which names ranks, numbers, group, collective and line;
///          empty when there are none.
std::string lost_messages(const std::vector<std::vector<MessageCount>>& counts);

/// The same of a job that has ended its work, on all of its ranks, which make this call together.
/// @param counts  of this rank.
std::string lost_messages(const Communicator& world, const std::vector<MessageCount>& counts);

}  // namespace rankwise
