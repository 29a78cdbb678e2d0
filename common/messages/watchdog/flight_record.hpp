#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// @file
/// What a flight recorder knows of one rank at one moment, in a form that travels. Times are in seconds before that
/// moment.

namespace rankwise {

/// One collective as a rank called it.
struct CallRecord {
  std::int64_t number = 0;  ///< of the group's collectives, from 1
  std::string name;         ///< as "all-reduce"
  std::string algorithm;    ///< as "ring"
  std::string type;         ///< as "f32"
  std::int64_t count = 0;   ///< elements
  int root = 0;             ///< of those that have one
  std::string label;        ///< what it is for; may be empty
  std::string where;        ///< file:line of the caller
  double began_s = 0;       ///< how long ago
  double ended_s = -1;      ///< how long ago; negative while it is under way
  double still_s = 0;       ///< since when nothing has moved, while it is under way

  /// Whether this rank is in it.
  bool open() const { return ended_s < 0; }
  /// Whether @p other is the same to those who take part. Callers may stand in different lines.
  bool matches(const CallRecord& other) const;
};

/// One message that is not finished.
struct TransferRecord {
  bool sends = false;           ///< else it receives
  int peer = 0;                 ///< the other rank, by its number in the job
  std::int64_t bytes = 0;       ///< > 0
  std::string label;            ///< what it is for, outside of collectives; may be empty
  std::string where;            ///< file:line that started it
  std::int64_t collective = 0;  ///< number of the one that it belongs to; 0 outside of any
  bool waited_for = false;      ///< whether the rank waits for it now
  double since_s = 0;           ///< when it was started
  double still_s = 0;           ///< since when nothing has moved
};

/// One group as a rank sees it.
struct TrackRecord {
  std::string group;                      ///< its name
  std::vector<int> members;               ///< by their numbers in the job
  std::int64_t made = 0;                  ///< groups of this name and these members before it
  std::int64_t calls = 0;                 ///< collectives so far
  std::vector<CallRecord> last;           ///< the last of them, in order
  std::vector<TransferRecord> transfers;  ///< that are not finished

  /// Whether @p other is the same group on another rank.
  bool same_group(const TrackRecord& other) const;
  /// The collective that is under way, or null.
  const CallRecord* open_call() const;
  /// A collective by its number, or null when it is not known (any more).
  const CallRecord* call(std::int64_t number) const;
};

/// Something that was started and has to be waited for.
struct HandleRecord {
  std::string label;   ///< what it is
  std::string where;   ///< file:line that started it
  double since_s = 0;  ///< when
};

/// A call of MPI that has not returned.
struct MpiCallRecord {
  std::string name;        ///< as "MPI_Send"
  int peer = -1;           ///< the other rank, by its number in the job; negative: none, or any
  std::int64_t bytes = 0;  ///< of the message that it sends or receives, or of what is broadcast
  std::uint64_t code = 0;  ///< where in the program it stands (code_places.hpp); 0 when not known
  std::string where;       ///< the same in words
  double since_s = 0;      ///< when it began
};

/// All of one rank.
struct FlightRecord {
  bool answers = true;                   ///< if not, the rest is empty
  bool finished = false;                 ///< the rank has ended its work
  double idle_s = 0;                     ///< since when it has finished nothing; 0 while it is in a kernel
  std::string phase;                     ///< what it is doing, as "has its turn"; empty when not known
  std::string span;                      ///< what it is doing, as "backward (file:line)"; empty when not known
  std::vector<MpiCallRecord> mpi_calls;  ///< that are under way, apart from those of our messages
  std::vector<TrackRecord> tracks;       ///< by group
  std::vector<HandleRecord> handles;     ///< not yet waited for

  /// How long nothing has moved: the longest of idle_s and of the collective, message or handle that is under way.
  double longest_s() const;
};

/// A record as it travels.
std::string to_text(const FlightRecord& record);
/// A record that came.
/// @throws Error  for text that to_text() does not write.
FlightRecord flight_record_from(const std::string& text);

}  // namespace rankwise
