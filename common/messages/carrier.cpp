#include "common/messages/carrier.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/cuda/devices.hpp"
#include "common/messages/communicator.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"
#include "common/program/session.hpp"

namespace rankwise {

void declare_transport(OptionTable& table, const std::string& group, TransportKind& transport)
{
  table.add_choice<TransportKind>(
      group, "transport", transport,
      {{"auto", TransportKind::automatic}, {"mpi", TransportKind::mpi}, {"nccl", TransportKind::nccl}},
      "library that carries messages; auto: NCCL if every rank has its own GPU, else MPI");
}

void check_transport(TransportKind transport, DeviceKind device)
{
  if (transport == TransportKind::nccl && device != DeviceKind::cuda)
    throw UserError("--transport=nccl needs --device=cuda.",
                    "NCCL carries messages between GPUs. Use --transport=mpi, or --device=cuda.");
}

void check_own_gpus(TransportKind transport, DeviceKind device)
{
  if (transport != TransportKind::nccl || device != DeviceKind::cuda) return;
  const GpuFacts gpu = gpu_facts();
  if (ranks_on_machine() <= gpu.count) return;
  throw UserError(fmt::format("--transport=nccl, but {} ranks share the {} GPU{} of this machine.",
                              ranks_on_machine(), gpu.count, gpu.count == 1 ? "" : "s"),
                  fmt::format("NCCL needs a GPU for each rank. Use --transport=mpi, which stages data through host "
                              "memory, or start at most {}.",
                              gpu.count));
}

Carrier choose_carrier(TransportKind transport, DeviceKind device, bool needs_mpi)
{
  if (Rehearsal::current()) return {};
  const Communicator world = Communicator::world();
  if (device != DeviceKind::cuda || world.ranks() == 1) return {};
  int own = ranks_on_machine() <= gpu_facts().count ? 1 : 0;  // 1 if this machine's ranks have a GPU each
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &own, 1, MPI_INT, MPI_MIN, world.handle()), "choosing the transport");

  const bool automatic = transport == TransportKind::automatic;
  const bool nccl = automatic ? own == 1 && !needs_mpi : transport == TransportKind::nccl;
  const char* const why = !automatic ? "as requested"
                          : own == 0 ? "because ranks share a GPU"
                          : nccl     ? "because every rank has its own GPU"
                                     : "because the virtual clock needs it";
  return {nccl, fmt::format("messages use {}, {}", nccl ? "NCCL" : "MPI, through host memory", why)};
}

}  // namespace rankwise
