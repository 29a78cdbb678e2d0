#pragma once

#include "common/messages/group.hpp"

/// @file
/// Pipelined broadcast along a chain of ranks.

namespace rankwise {

/// Maximum size of one piece in bytes.
inline constexpr std::int64_t chain_message_bytes = 256 << 10;

/// Copies the root's @p values to all ranks in pieces: each rank forwards a piece to the next rank while it
/// receives the following piece. Ranks are numbered from the root.
///
/// N = 3, 3 pieces    step 0    step 1           step 2           step 3
/// root               a -> 1    b -> 1           c -> 1
/// next                         a -> 2           b -> 2           c -> 2
///
/// @param values  (n) any type, the same n on all ranks.
/// @param root    0 <= root < N.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     every rank but the last sends n elements, in pieces of chain_message_bytes; for many pieces the time
///           approaches that of sending n elements once, for any N. No scratch.
/// @source   Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, section 3.
void chain_broadcast(const Tensor& values, int root, Group& group);

}  // namespace rankwise
