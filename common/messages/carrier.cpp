#include "common/messages/carrier.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/cuda/devices.hpp"
#include "common/messages/communicator.hpp"
#include "common/program/session.hpp"

namespace rankwise {

void declare_transport(OptionTable& table, const std::string& group, TransportKind& transport)
{
  table.add_choice<TransportKind>(
      group, "transport", transport,
      {{"auto", TransportKind::automatic}, {"mpi", TransportKind::mpi}, {"nccl", TransportKind::nccl}},
      "what carries messages; auto: NCCL where every rank has a GPU of its own, else MPI");
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
                  fmt::format("NCCL wants a GPU for each rank. Use --transport=mpi, which goes through the host's "
                              "memory, or start at most {}.",
                              gpu.count));
}

Carrier choose_carrier(TransportKind transport, DeviceKind device, bool needs_mpi)
{
  const Communicator world = Communicator::world();
  if (device != DeviceKind::cuda || world.ranks() == 1) return {};
  int own = ranks_on_machine() <= gpu_facts().count ? 1 : 0;  // whether this machine's ranks have a GPU each
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &own, 1, MPI_INT, MPI_MIN, world.handle()),
            "choosing what carries messages");

  const bool automatic = transport == TransportKind::automatic;
  const bool nccl = automatic ? own == 1 && !needs_mpi : transport == TransportKind::nccl;
  const char* const why = !automatic ? "as asked for"
                          : own == 0 ? "since ranks share a GPU"
                          : nccl     ? "since every rank has a GPU of its own"
                                     : "since the virtual clock needs it";
  return {nccl, fmt::format("messages go over {}, {}", nccl ? "NCCL" : "MPI, through the host's memory", why)};
}

}  // namespace rankwise
