#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/exact_scalar.hpp"
#include "common/base/partition.hpp"
#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"

/// @file
/// The collectives: what they leave behind, whatever the algorithm of the group.
///
/// All ranks of a group make the same call, with as many elements of the same type. Sums of bf16 are made in f32 and
/// rounded when they are sent on or stored. After a sum all ranks hold the same bits. An error ends the whole job with
/// rank, file and line.

namespace rankwise {

/// Leaves on each rank the finished shard of the sum of @p values that it owns: shard r of Partition(n, N).
/// @param values  (n) on each rank; the other shards are undefined afterwards.
/// @return  the elements of shard r.
Range reduce_scatter_sum(const Tensor& values, Group& group, SourceLocation where = SourceLocation::current());

/// Copies shard q of Partition(n, N) from rank q to all ranks, for all q.
/// @param values  (n) on each rank; shard r is read on rank r.
void all_gather(const Tensor& values, Group& group, SourceLocation where = SourceLocation::current());

/// Replaces @p values by their sum over the ranks: reduce_scatter_sum(), then all_gather(). Small messages are summed
/// whole where that takes fewer of them.
/// @param values  (n) on each rank.
void all_reduce_sum(const Tensor& values, Group& group, SourceLocation where = SourceLocation::current());

/// Replaces a sum on each rank by the sum over the ranks.
void all_reduce_sum(ExactScalar& sum, Group& group, SourceLocation where = SourceLocation::current());
/// Replaces numbers of the host on each rank by their sums over the ranks.
/// @param numbers  as many on all ranks, at most 512.
void all_reduce_sum(std::span<std::int64_t> numbers, Group& group,
                    SourceLocation where = SourceLocation::current());
/// Replaces a number on each rank by the sum over the ranks.
void all_reduce_sum(std::int64_t& number, Group& group, SourceLocation where = SourceLocation::current());

/// Copies the root's @p values to all ranks.
/// @param values  (n) on each rank.
/// @param root    0 <= root < N, or Error.
void broadcast(const Tensor& values, int root, Group& group, SourceLocation where = SourceLocation::current());

/// Copies a text of the host from the root to all ranks.
/// @param text  as long on all ranks, at most 4096.
void broadcast(std::string& text, int root, Group& group, SourceLocation where = SourceLocation::current());

/// The same number from each rank, by rank, on all of them.
std::vector<std::int64_t> all_gather(std::int64_t number, Group& group,
                                     SourceLocation where = SourceLocation::current());

/// Leaves the sum of @p values on the root.
/// @param values  (n) on each rank; undefined afterwards on the others.
/// @param root    0 <= root < N, or Error.
void reduce_sum(const Tensor& values, int root, Group& group, SourceLocation where = SourceLocation::current());

/// Returns when all ranks have called it.
void barrier(Group& group, SourceLocation where = SourceLocation::current());

/// Makes the scratch of a call before it, for where it must not grow: growing frees memory, for which a GPU waits until all of
/// its streams are done, and one may be receiving what a rank will send only when this one has gone on.
void reserve_scratch(const CollectiveShape& call, Group& group);

/// What `auto` chooses for a group, and from which size on, in a few words. For other algorithms their name.
std::string describe_algorithm(const Group& group);

}  // namespace rankwise
