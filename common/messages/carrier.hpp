#pragma once

#include <string>

#include "common/memory/device.hpp"
#include "common/program/options.hpp"

/// @file
/// The library that carries messages: MPI, or NCCL between GPUs.

namespace rankwise {

/// `--transport`.
enum class TransportKind : std::uint8_t {
  automatic,  ///< NCCL if every rank has its own GPU, else MPI
  mpi,        ///< MPI; data on a GPU is staged through host memory
  nccl,       ///< NCCL, between GPUs
};

/// Declares `--transport`.
void declare_transport(OptionTable& table, const std::string& group, TransportKind& transport);

/// Rejects NCCL without GPUs.
/// @throws UserError.
void check_transport(TransportKind transport, DeviceKind device);

/// Rejects NCCL if ranks share a GPU.
/// @param device    accepted by check_device().
/// @throws UserError.
void check_own_gpus(TransportKind transport, DeviceKind device);

/// The library that carries a run's messages.
struct Carrier {
  bool nccl = false;  ///< NCCL; else MPI
  std::string text;   ///< the choice and its reason, in a sentence; empty if there was no choice
};

/// Chooses the library; all ranks make this call.
/// @param transport  as requested, accepted by both checks.
/// @param device     device on which the ranks compute.
/// @param needs_mpi  true if some part of the run requires MPI, so that `auto` selects it.
Carrier choose_carrier(TransportKind transport, DeviceKind device, bool needs_mpi);

}  // namespace rankwise
