#pragma once

#include <string>

#include "common/memory_ledger.hpp"
#include "common/report.hpp"
#include "common/session.hpp"

/// @file
/// What every program prints and writes in the same way of its ranks and their memory.

namespace rankwise {

/// Prints which lesson runs on how many ranks, and enters both in the document.
void begin_job(Report& report, const std::string& lesson, const Session& session);

/// Block "memory": bytes of the device tier by category, current = formula and peak, and a check of each; enters `memory`
/// and `memory_ranks` in the document.
/// @param report    where to.
/// @param measured  this rank's ledger at the end of a step.
/// @param formula   what the paper says.
void report_memory(Report& report, const MemoryLedger& measured, const CategoryBytes& formula);

}  // namespace rankwise
