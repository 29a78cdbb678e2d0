#pragma once

#include <string>

#include "common/memory/device.hpp"
#include "common/memory/memory_ledger.hpp"
#include "common/program/report.hpp"
#include "common/program/session.hpp"

/// @file
/// Which rank computes on which device, and whether it has room there.

namespace rankwise {

/// Refuses a run whose plan is larger than capacity_of() its device.
/// @param planned      bytes of the device tier, by category.
/// @param device       where, as check_device() has passed it.
/// @param remedy       what the user can do about it, one sentence.
/// @throws UserError   with the table of categories.
void check_device_capacity(const CategoryBytes& planned, DeviceKind device, const std::string& remedy);

/// Prints rank, host, GPU, name and memory of all ranks, where they compute on GPUs; enters `placement` in the document.
/// All ranks make this call.
void report_placement(Report& report, const Session& session, DeviceKind device);

/// Block "GPU memory": what rank 0's ledger has counted beside what the GPU says is in use, by all who use it. Nothing on a
/// CPU.
void report_gpu_memory(Report& report, const MemoryLedger& ledger, DeviceKind device);

}  // namespace rankwise
