#pragma once

#include <string>
#include <vector>

#include "common/messages/watchdog/flight_record.hpp"

/// @file
/// Waits of ranks for each other, according to the flight records of all ranks, and their description in words.

namespace rankwise {

/// One record for each rank.
using Records = std::vector<FlightRecord>;

/// A rank that waits in a collective, or for a message outside of any.
struct RankWait {
  int rank;                        ///< the waiting rank
  const TrackRecord* track;        ///< the group
  const CallRecord* call;          ///< the collective, or null
  const TransferRecord* transfer;  ///< the message, or null

  /// Seconds without progress.
  double still_s() const;
  /// The ranks that it waits for: those that have not called the collective, or the message's other rank.
  std::vector<int> missing(const Records& records) const;
};

/// All waiting ranks, in order.
std::vector<RankWait> all_waits(const Records& records);
/// True if a rank is itself waiting.
bool waits_itself(const std::vector<RankWait>& waits, int rank);
/// All ranks that wait in the same collective as @p wait.
std::vector<int> ranks_in(const std::vector<RankWait>& waits, const RankWait& wait);

/// The record of a rank.
const FlightRecord& at(const Records& records, int rank);
/// A rank's record of a group; null if it has none.
const TrackRecord* track_of(const Records& records, int rank, const TrackRecord& group);

/// "rank 1", "ranks 0 and 3", "ranks 0, 1 and 3".
std::string list_of(const std::vector<int>& ranks);
/// "rank 1 calls", "ranks 0 and 3 call".
std::string calls(const std::vector<int>& ranks);
/// `all-reduce (ring) of 1,024 f32 for "h.2.mlp" (file.cpp:12)`.
std::string text_of(const CallRecord& call);
/// "1,024 bytes from rank 2 (file.cpp:12)".
std::string text_of(const TransferRecord& transfer);
/// "MPI_Send of 1,024 bytes to rank 1, called by f (file.cpp:12)".
std::string text_of(const MpiCallRecord& call);
/// State of a rank in words: "waits in ...", "is in no collective ...", "has ended ...", "does not answer".
std::string place_of(const FlightRecord& record);

}  // namespace rankwise
