#pragma once

#include <cstdint>
#include <mpi.h>
#include <string>
#include <vector>

/// @file
/// Counts the messages that the code under test sends and receives by calls of MPI, through MPI's profiling interface,
/// and notes calls that it must not make.

namespace rankwise {

/// A message as it was sent.
struct SentMessage {
  int to;              ///< rank of the communicator
  std::int64_t bytes;  ///< size
};

/// Counts from its construction to its end. Meanwhile each standard send waits for its receiver, as it may in any MPI.
/// There is at most one of them.
class CountedCalls {
 public:
  CountedCalls();
  ~CountedCalls();
  CountedCalls(const CountedCalls&) = delete;
  CountedCalls& operator=(const CountedCalls&) = delete;

  std::vector<SentMessage> sent{};       ///< messages of this rank in the order in which they were started
  std::int64_t received = 0;             ///< messages that this rank has received or begun to receive
  std::vector<std::string> forbidden{};  ///< names of collectives and other calls that do what is to be written
  double delay_s = 0;                    ///< seconds that this rank sleeps before it sends a message

  /// Bytes of all messages that this rank has sent.
  std::int64_t sent_bytes() const;
};

/// Whether all messages within a communicator have been received: as many as were sent, and MPI knows of no other. All
/// its ranks make this call.
/// @param calls  those of this rank.
bool all_received(const CountedCalls& calls, MPI_Comm comm);

}  // namespace rankwise
