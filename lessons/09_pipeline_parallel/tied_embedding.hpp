#pragma once

#include <memory>
#include <vector>

#include "common/messages/group.hpp"
#include "common/program/report.hpp"
#include "gpt2/checkpoint.hpp"

/// @file
/// The two ends of a pipeline, which share the token embedding.

namespace rankwise {

/// The two ranks that have the token embedding, the first and the last of a line; nothing on the others, and where there is
/// one rank. All ranks of the line make this call.
/// @param setup  of the group, named "tied".
std::unique_ptr<Group> group_of_ends(const Group& line, const GroupSetup& setup);

/// A check that both ends have the same token embedding. All ranks of the job make this call.
/// @param own     what this rank has of the table, range by range.
/// @param shards  what it updates of each of them.
/// @param stream  of their device: made them.
/// @param ends    of group_of_ends().
void check_tied(Report& report, const std::vector<Range>& own, const std::vector<Shard>& shards, Stream& stream,
                Group* ends);

}  // namespace rankwise
