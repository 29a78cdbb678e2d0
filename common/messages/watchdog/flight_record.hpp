#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// @file
/// Snapshot of a flight recorder, which can be sent to other ranks. Times are in seconds before the snapshot.

namespace rankwise {

/// One collective as a rank called it.
struct CallRecord {
  std::int64_t number = 0;  ///< among the group's collectives, from 1
  std::string name;         ///< as "all-reduce"
  std::string algorithm;    ///< as "ring"
  std::string type;         ///< as "f32"
  std::int64_t count = 0;   ///< elements
  int root = 0;             ///< root rank, for collectives that have one
  std::string label;        ///< its purpose; may be empty
  std::string where;        ///< file and line of the caller
  double began_s = 0;       ///< seconds since it began
  double ended_s = -1;      ///< seconds since it ended; negative while under way
  double still_s = 0;       ///< while under way: seconds without progress

  /// True while it is under way on this rank.
  bool open() const { return ended_s < 0; }
  /// True if @p other is a matching call on another rank. The callers' lines may differ.
  bool matches(const CallRecord& other) const;
};

/// One message that is not finished.
struct TransferRecord {
  bool sends = false;           ///< true if it is sent; else received
  int peer = 0;                 ///< the other rank, as its rank in the job
  std::int64_t bytes = 0;       ///< > 0
  std::string label;            ///< its purpose, outside of collectives; may be empty
  std::string where;            ///< file and line that started it
  std::int64_t collective = 0;  ///< number of the collective that it belongs to; 0 outside of any
  bool waited_for = false;      ///< true if the rank waits for it now
  double since_s = 0;           ///< seconds since it was started
  double still_s = 0;           ///< seconds without progress
};

/// One group as a rank sees it.
struct TrackRecord {
  std::string group;                      ///< its name
  std::vector<int> members;               ///< their ranks in the job
  std::int64_t made = 0;                  ///< number of earlier groups with this name and these members
  std::int64_t calls = 0;                 ///< number of collectives so far
  std::vector<CallRecord> last;           ///< the most recent collectives, in order
  std::vector<TransferRecord> transfers;  ///< transfers that are not finished

  /// True if @p other is the same group on another rank.
  bool same_group(const TrackRecord& other) const;
  /// The collective that is under way, or null.
  const CallRecord* open_call() const;
  /// A collective by its number, or null if it is not (or no longer) recorded.
  const CallRecord* call(std::int64_t number) const;
};

/// Something that was started and has to be waited for.
struct HandleRecord {
  std::string label;   ///< its name
  std::string where;   ///< file and line that started it
  double since_s = 0;  ///< seconds since it was started
};

/// A call of MPI that has not returned.
struct MpiCallRecord {
  std::string name;        ///< as "MPI_Send"
  int peer = -1;           ///< the other rank, as its rank in the job; negative: none, or any
  std::int64_t bytes = 0;  ///< size of the message or of the broadcast data
  std::uint64_t code = 0;  ///< offset of the caller in the program (code_places.hpp); 0 if unknown
  std::string where;       ///< the caller as text
  double since_s = 0;      ///< seconds since it began
};

/// The complete record of one rank.
struct FlightRecord {
  bool answers = true;                   ///< true if the rank answered; if not, the rest is empty
  bool finished = false;                 ///< true if the rank has finished its work
  bool working = false;                  ///< true if it is in a kernel
  double idle_s = 0;                     ///< seconds without progress; 0 while it is in a kernel
  std::string phase;                     ///< its current Phase, as "has its turn"; empty if unknown
  std::string span;                      ///< its open span, as "backward (file:line)"; empty if unknown
  std::vector<MpiCallRecord> mpi_calls;  ///< calls by the program itself that have not returned
  std::vector<TrackRecord> tracks;       ///< by group
  std::vector<HandleRecord> handles;     ///< asynchronous operations not yet waited for

  /// Seconds without progress: the maximum over idle_s and all pending collectives, messages and handles.
  double longest_s() const;
};

/// Serialises a record.
std::string to_text(const FlightRecord& record);
/// Parses a serialised record.
/// @throws Error  for text that to_text() cannot have written.
FlightRecord flight_record_from(const std::string& text);

}  // namespace rankwise
