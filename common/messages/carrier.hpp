#pragma once

#include <string>

#include "common/memory/device.hpp"
#include "common/program/options.hpp"

/// @file
/// What carries messages: MPI, or NCCL between GPUs.

namespace rankwise {

/// `--transport`.
enum class TransportKind : std::uint8_t {
  automatic,  ///< NCCL where every rank has a GPU of its own, else MPI
  mpi,        ///< MPI; from the memory of a GPU through the host's
  nccl,       ///< NCCL, between GPUs
};

/// Declares `--transport`.
void declare_transport(OptionTable& table, const std::string& group, TransportKind& transport);

/// Refuses NCCL without GPUs.
/// @throws UserError.
void check_transport(TransportKind transport, DeviceKind device);

/// Refuses NCCL where ranks share a GPU.
/// @param device    as check_device() has passed it.
/// @throws UserError.
void check_own_gpus(TransportKind transport, DeviceKind device);

/// What carries the messages of a run.
struct Carrier {
  bool nccl = false;  ///< NCCL; else MPI
  std::string text;   ///< which and why, in a sentence; empty where there is nothing to choose
};

/// Chooses; all ranks make this call.
/// @param transport  what was asked for, as both checks have passed it.
/// @param device     where the ranks compute.
/// @param needs_mpi  whether something in the run does, so that `auto` is MPI.
Carrier choose_carrier(TransportKind transport, DeviceKind device, bool needs_mpi);

}  // namespace rankwise
