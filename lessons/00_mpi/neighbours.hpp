#pragma once

#include <mpi.h>
#include <span>

/// @file
/// A step of a ring: every rank sends to the next one and receives from the previous one, without a deadlock.

namespace rankwise {

/// Sends @p sent to rank (r+1) mod N and receives @p received from rank (r-1) mod N.
///
/// N = 3    sends     receives
/// rank 0   -> 1      from 2
/// rank 1   -> 2      from 0
/// rank 2   -> 0      from 1
///
/// A send may wait until its receiver receives, so ranks that all send first would wait in a circle. No message may
/// depend on the MPI library keeping a copy of it.
///
/// @param      sent      (n_r) f64, any number of elements, also none; it is not changed.
/// @param[out] received  (n_{r-1}) f64: as many as the previous rank sends; other memory than @p sent.
/// @param      comm      N >= 1 ranks; all of them make this call. A single rank sends to itself.
/// @cost     one message of 8 n_r bytes per rank.
/// @failure  an MPI error ends the whole job with rank, file and line.
void exchange_with_neighbours(std::span<const double> sent, std::span<double> received, MPI_Comm comm);

}  // namespace rankwise
