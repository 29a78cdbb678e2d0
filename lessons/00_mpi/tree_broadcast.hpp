#pragma once

#include <mpi.h>
#include <span>

/// @file
/// A broadcast made of messages between two ranks.

namespace rankwise {

/// Copies @p values from rank @p root to all ranks along a binomial tree: in each step every rank that has the values
/// sends them to one that does not, so their number doubles. Ranks are counted from the root: k = (r - root) mod N.
///
/// N = 5    step 0    step 1    step 2
/// k = 0    -> 1      -> 2      -> 4
/// k = 1              -> 3
///
/// @param[in,out] values  (n) f64, the same n on all ranks, also 0.
/// @param         root    the rank that has the values.
/// @param         comm    N >= 1 ranks; all of them make this call.
/// @cost     ceil(log2 N) steps; every rank but the root receives one message of 8 n bytes, so N-1 are sent.
/// @failure  an MPI error ends the whole job with rank, file and line.
/// @source   Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, section 4.3.
void tree_broadcast(std::span<double> values, int root, MPI_Comm comm);

}  // namespace rankwise
