#pragma once

#include <string>

#include "common/memory/device.hpp"
#include "common/memory/memory_ledger.hpp"
#include "common/program/options.hpp"
#include "common/program/report.hpp"

/// @file
/// Placement of ranks on devices, and whether a run fits in their memory.

namespace rankwise {

/// Declares `--device`.
void declare_device(OptionTable& table, DeviceKind& device);

/// Rejects a run whose planned memory exceeds capacity_of() its device.
/// @param planned      bytes on the device tier, by category.
/// @param device       the device, accepted by check_device().
/// @param remedy       advice for the user, one sentence.
/// @throws UserError   with the bytes by category.
void check_device_capacity(const CategoryBytes& planned, DeviceKind device, const std::string& remedy);

/// Sets the number of OpenMP threads of this rank, and checks that they start: a library divides a product among all of them,
/// and the share of a missing thread would never be computed.
/// @throws UserError  if fewer start.
void start_threads(int threads);

/// Says so if the ranks of a machine are bound to fewer cores than they have threads while others are free. If the ranks
/// compute on GPUs: prints rank, host, GPU, its name and memory for all ranks, and adds `placement` to
/// the JSON document. All ranks make this call.
void report_placement(Report& report, DeviceKind device);

/// Reports block "GPU memory": bytes counted by rank 0's ledger beside the memory in use on its GPU by all
/// processes. Does nothing on a CPU.
void report_gpu_memory(Report& report, const MemoryLedger& ledger, DeviceKind device);

}  // namespace rankwise
