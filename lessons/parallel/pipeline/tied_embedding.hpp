#pragma once

#include <memory>
#include <vector>

#include "common/messages/group.hpp"
#include "common/program/report.hpp"
#include "gpt2/files/checkpoint.hpp"

/// @file
/// The first and the last rank of a pipeline, which share the tied token embedding.

namespace rankwise {

/// The group of the two ranks that have the token embedding, the first and the last of a line; null on the others,
/// and if there is only one rank. All ranks of the line make this call.
/// @param setup  of the group, which is named "tied".
std::unique_ptr<Group> group_of_ends(const Group& line, const GroupSetup& setup);

/// A check that both ends have the same token embedding. All ranks of the job make this call.
/// @param own     this rank's ranges of the table.
/// @param shards  the shard of each range that this rank updates.
/// @param stream  on which the shards were computed.
/// @param ends    from group_of_ends(), or null.
void check_tied(Report& report, const std::vector<Range>& own, const std::vector<Shard>& shards, Stream& stream,
                Group* ends);

}  // namespace rankwise
