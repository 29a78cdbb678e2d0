#pragma once

#include <cstdint>
#include <mpi.h>
#include <optional>

/// @file
/// Eager or rendezvous: the size from which a send waits for its receiver, found by measurement.

namespace rankwise {

/// The receiver's behaviour before it receives.
enum class Until {
  asleep,     ///< sleeps, so its MPI library does nothing
  in_library  ///< asks for another message again and again, so its MPI library can take a copy of what arrives
};

/// Seconds until MPI_Send returns on rank 0 while rank 1 receives later.
/// @param bytes   size of the message.
/// @param until   what rank 1 does before it receives,
/// @param late_s  and for how many seconds.
/// @param comm    N >= 2 ranks; all of them make this call.
/// @return   the same on all ranks.
double late_receiver_s(std::int64_t bytes, Until until, double late_s, MPI_Comm comm);

/// True if a send from rank 0 to rank 1 ends although rank 1 receives only afterwards.
///
/// No clock decides. Rank 0 starts the send, and then both ranks exchange empty messages, which cannot overtake it: after
/// that the library of rank 1 has seen the first message, and has taken a copy of it, or waits.
/// @param bytes  size of the message.
/// @param comm   N >= 2 ranks; all of them make this call.
/// @return   the same on all ranks.
bool ends_alone(std::int64_t bytes, MPI_Comm comm);

/// Neighbouring sizes, of which a send of the first ends alone and one of the second waits.
struct EagerLimit {
  std::int64_t ends_alone;  ///< bytes
  std::int64_t waits;       ///< bytes, one more
};

/// The size from which a send waits for its receiver, found by bisection of 1 B to 4 MiB with ends_alone().
/// @param comm  as there.
/// @return   the same on all ranks; nothing if the shortest message waits or the longest does not.
std::optional<EagerLimit> find_eager_limit(MPI_Comm comm);

}  // namespace rankwise
