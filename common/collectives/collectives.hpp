#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/exact_scalar.hpp"
#include "common/base/partition.hpp"
#include "common/collectives/cost.hpp"
#include "common/memory/partial_sum.hpp"
#include "common/messages/group.hpp"

/// @file
/// The collectives and their results, which do not depend on the group's algorithm.
///
/// All ranks of a group make the same call, with the same type and number of elements. bf16 is summed in f32 and
/// rounded when a sum is sent on or stored. After a sum all ranks hold the same bits. An error ends the whole job
/// with rank, file and line.

namespace rankwise {

/// Leaves on each rank the finished shard of the sum of @p values that it owns: shard r of Partition(n, N).
/// @param values  (n) on each rank; the other shards are undefined afterwards.
/// @return  the elements of shard r.
Range reduce_scatter_sum(const Tensor& values, Group& group, SourceLocation where = SourceLocation::current());

/// Reduce-scatters sums over terms that each rank has added already: GroupSetup::leaves terms, dealt out as
/// DealtLeaves, or terms to be added in any order. The result is that of tree_sum(), for any number of ranks.
/// @param sum  (n) on each rank. The shard is left in the first subtree, where the others are undefined afterwards.
Range reduce_scatter_sum(const PartialSum& sum, Group& group, SourceLocation where = SourceLocation::current());

/// Copies shard q of Partition(n, N) from rank q to all ranks, for all q.
/// @param values  (n) on each rank; shard r is read on rank r.
void all_gather(const Tensor& values, Group& group, SourceLocation where = SourceLocation::current());

/// Replaces @p values by their sum over the ranks: reduce_scatter_sum(), then all_gather(). Small vectors are
/// summed whole where that takes fewer messages.
/// @param values  (n) on each rank.
void all_reduce_sum(const Tensor& values, Group& group, SourceLocation where = SourceLocation::current());
/// All-reduces sums over terms that each rank has added already, as in reduce_scatter_sum(). The first subtree
/// becomes the sum.
void all_reduce_sum(const PartialSum& sum, Group& group, SourceLocation where = SourceLocation::current());

/// Replaces a sum on each rank by the sum over the ranks.
void all_reduce_sum(ExactScalar& sum, Group& group, SourceLocation where = SourceLocation::current());
/// Replaces numbers in host memory by their sums over the ranks.
/// @param numbers  the same count on all ranks, at most 512.
void all_reduce_sum(std::span<std::int64_t> numbers, Group& group,
                    SourceLocation where = SourceLocation::current());
/// Replaces a number on each rank by the sum over the ranks.
void all_reduce_sum(std::int64_t& number, Group& group, SourceLocation where = SourceLocation::current());

/// Copies the root's @p values to all ranks.
/// @param values  (n) on each rank.
/// @param root    0 <= root < N, or Error.
void broadcast(const Tensor& values, int root, Group& group, SourceLocation where = SourceLocation::current());

/// Copies a text in host memory from the root to all ranks.
/// @param text  the same length on all ranks, at most 4096.
void broadcast(std::string& text, int root, Group& group, SourceLocation where = SourceLocation::current());

/// Gathers one number from each rank on all ranks. @return the numbers, by rank.
std::vector<std::int64_t> all_gather(std::int64_t number, Group& group,
                                     SourceLocation where = SourceLocation::current());

/// Leaves the sum of @p values on the root.
/// @param values  (n) on each rank; undefined afterwards on the others.
/// @param root    0 <= root < N, or Error.
void reduce_sum(const Tensor& values, int root, Group& group, SourceLocation where = SourceLocation::current());

/// Sends block s of @p sent to rank s and stores what rank q sends as block q of @p received, for all s and q: a
/// matrix of blocks, one row per rank, is transposed.
/// @param sent      (N b) in blocks of b elements, of any type. n that N does not divide is an Error.
/// @param received  (N b) of the same type; does not overlap @p sent.
void all_to_all(const Tensor& sent, const Tensor& received, Group& group,
                SourceLocation where = SourceLocation::current());

/// All-to-all with blocks of any sizes, which follow each other without gaps. Empty blocks send no message.
/// @param sent_counts      elements for each rank; their sum is the size of @p sent, or Error.
/// @param received_counts  elements from each rank; their sum is the size of @p received, or Error. Counts on which
///                         sender and receiver disagree end the job, or are named with `--check-messages`.
void all_to_all_v(const Tensor& sent, std::span<const std::int64_t> sent_counts, const Tensor& received,
                  std::span<const std::int64_t> received_counts, Group& group,
                  SourceLocation where = SourceLocation::current());

/// Sends number s to rank s, for all s, as ranks need before an all_to_all_v(). @return the numbers received, by rank.
/// @param numbers  (N) in host memory.
std::vector<std::int64_t> all_to_all(std::span<const std::int64_t> numbers, Group& group,
                                     SourceLocation where = SourceLocation::current());

/// Returns when all ranks have called it.
void barrier(Group& group, SourceLocation where = SourceLocation::current());

/// Allocates the scratch of a call in advance. Growing it later would free GPU memory, which waits for all streams
/// of the GPU. That is a deadlock if one of them receives from a rank that in turn waits for this rank.
void reserve_scratch(const CollectiveShape& call, Group& group);

/// Describes briefly what `auto` chooses for a group, and from which size on; for other algorithms their name.
std::string describe_algorithm(const Group& group);

}  // namespace rankwise
