#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/program/report.hpp"

/// @file
/// Senders and receivers of the messages on a mesh.

namespace rankwise {

/// Checks that no message left an axis. All ranks make this call.
/// @param sent   bytes that this rank sent to each rank of the job along the axis.
/// @param peers  ranks of the job that it may send to.
void check_receivers(Report& report, const std::string& axis, const std::vector<std::int64_t>& sent,
                     const std::vector<int>& peers);

}  // namespace rankwise
