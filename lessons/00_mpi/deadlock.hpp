#pragma once

#include <cstdint>
#include <mpi.h>
#include <vector>

/// @file
/// A circle of sends: what happens if every rank sends first and receives afterwards.

namespace rankwise {

/// The ways in which a send may end.
enum class Sending {
  standard,     ///< MPI_Send: perhaps as soon as MPI has a copy, perhaps only with its receiver
  synchronous,  ///< MPI_Ssend: only when its receiver receives
};

/// Every rank sends to the next one while no rank receives, and asks whether its send has ended once all ranks have been
/// inside the library. A program with blocking sends would hang where this answer is no. Then all ranks receive, and all
/// sends end.
/// @param bytes  size of each message.
/// @param comm   N >= 1 ranks; all of them make this call. A single rank sends to itself.
/// @return   by rank, whether its send waits; the same on all ranks.
std::vector<int> try_circle(std::int64_t bytes, Sending sending, MPI_Comm comm);

/// The same with blocking sends: a real deadlock if N > 1, which only the watchdog ends.
/// @param comm  as above.
void hang(MPI_Comm comm);

}  // namespace rankwise
