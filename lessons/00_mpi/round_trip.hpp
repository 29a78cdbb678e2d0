#pragma once

#include <cstddef>
#include <mpi.h>
#include <span>
#include <vector>

#include "lessons/frame/instruments/fit.hpp"

/// @file
/// Ping-pong: the time of a message to another rank and back.

namespace rankwise {

/// Sends a message to another rank and back, once. Both ranks make this call, each with the other as @p partner: the
/// lower one sends first, and the higher one sends back what it has received.
///
/// @param[in,out] message  the bytes, as many on both ranks, also none. Afterwards both have those of the lower rank.
/// @param         partner  the other rank of @p comm.
/// @param         comm     at least two ranks; the others do not make this call.
/// @return   on the lower rank the seconds from before its send until the message is back; 0 on the higher rank.
/// @cost     one message per rank.
/// @failure  an MPI error ends the whole job with rank, file and line.
double round_trip_s(std::span<std::byte> message, int partner, MPI_Comm comm);

/// Times messages of 8 B, 16 B, ..., 4 MiB between ranks 0 and 1. All ranks make this call.
/// @param trips  timed round trips per size, >= 1; ten more warm up.
/// @param comm   N >= 2 ranks; those from 2 on only wait.
/// @return   for each size half of the median round trip; the same on all ranks.
std::vector<MessageTime> measure_messages(int trips, MPI_Comm comm);

}  // namespace rankwise
