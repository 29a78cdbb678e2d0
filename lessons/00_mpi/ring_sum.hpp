#pragma once

#include <mpi.h>
#include <span>

/// @file
/// A sum over the ranks made of messages around a ring.

namespace rankwise {

/// Replaces @p values by their sum over all ranks, element by element. The vector is cut into the N shards of
/// Partition(n, N), whose sizes differ by at most one; shard numbers are taken modulo N.
///
/// Reduce-scatter, N-1 steps: in step k rank r sends its partial sum of shard r-k-1 to rank r+1 and adds what arrives
/// from rank r-1 to its own shard r-k-2. Then rank r has the complete shard r. All-gather, N-1 steps: in step k rank
/// r sends shard r-k to rank r+1 and stores shard r-k-1, which arrives from rank r-1.
///
/// @param[in,out] values  (n) f64, the same n on all ranks, any number of elements, also fewer than N.
/// @param         comm    N >= 1 ranks; all of them make this call.
/// @cost     2 (N-1) messages per rank, each of one shard, and memory for one shard; all ranks together send
///           2 (N-1) 8 n bytes.
/// @failure  an MPI error ends the whole job with rank, file and line.
/// @source   Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002, section 3.
void ring_sum(std::span<double> values, MPI_Comm comm);

}  // namespace rankwise
