#pragma once

#include <mpi.h>
#include <string>

#include "common/program/report.hpp"
#include "lessons/00_mpi/options.hpp"

/// @file
/// The measured parts of lesson 00: deadlock, ping-pong, eager or rendezvous.

namespace rankwise {

/// State that the parts of a run share.
struct MpiRun {
  const MpiOptions& options;       ///< as they were checked
  Report& report;                  ///< prints on rank 0
  MPI_Comm comm = MPI_COMM_WORLD;  ///< the ranks that take part
};

/// Shows circles of sends: which of them would hang. All ranks make this call.
void show_deadlock(MpiRun& run);

/// Shows the times of messages of 8 B to 4 MiB between ranks 0 and 1, and the line fitted to them. All ranks make this
/// call.
void show_ping_pong(MpiRun& run);

/// Shows how long MPI_Send takes when the receiver is late, and the size from which it waits. All ranks make this
/// call.
void show_eager(MpiRun& run);

/// True if there are two ranks; otherwise prints in one sentence that a part needs them.
bool has_two_ranks(MpiRun& run, const std::string& part);

}  // namespace rankwise
