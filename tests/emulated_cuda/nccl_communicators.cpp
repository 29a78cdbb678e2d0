#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "tests/emulated_cuda/nccl_exchange.hpp"

/// @file
/// NCCL: construction and destruction of communicators, and their errors.

using namespace emulated_cuda;

namespace {

// Never destroyed: see look_after_work().
std::vector<std::shared_ptr<ncclComm>>& communicators = *new std::vector<std::shared_ptr<ncclComm>>;
bool is_looked_after = false;  // by a thread of its own
std::string last_error;

// ---- How the ranks of a new communicator find each other ----------------------------------------------------------------

constexpr int first_tag = 31000;  // of MPI_COMM_WORLD, for the messages below
constexpr int tags = 1000;

/// The process that made an id.
struct IdContent {
  int maker;   // rank of MPI_COMM_WORLD
  int number;  // among its ids
};

/// What one rank reports about itself.
struct Member {
  int world_rank;
  int rank;
  int device;
  std::uint64_t host;
};

std::uint64_t this_host()
{
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return std::hash<std::string>()(name.data());
}

/// All members by rank: each reports to the rank that made the id, which sends the list to all.
std::vector<Member> gather_members(const IdContent& id, const Member& self, int ranks)
{
  std::vector<Member> members(static_cast<std::size_t>(ranks));
  const auto bytes = static_cast<int>(members.size() * sizeof(Member));
  const int tag = first_tag + id.number % tags;
  if (self.world_rank != id.maker) {
    require_mpi(MPI_Send(&self, sizeof self, MPI_BYTE, id.maker, tag, MPI_COMM_WORLD), "joining a communicator");
    require_mpi(MPI_Recv(members.data(), bytes, MPI_BYTE, id.maker, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                "joining a communicator");
    return members;
  }
  members[0] = self;
  for (std::size_t i = 1; i < members.size(); ++i)
    require_mpi(
        MPI_Recv(&members[i], sizeof self, MPI_BYTE, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
        "making a communicator");
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.rank < b.rank; });
  for (const Member& member : members)
    if (member.world_rank != id.maker)
      require_mpi(MPI_Send(members.data(), bytes, MPI_BYTE, member.world_rank, tag, MPI_COMM_WORLD),
                  "making a communicator");
  return members;
}

MPI_Comm communicator_of(const std::vector<Member>& members, int tag)
{
  std::vector<int> world_ranks;
  for (const Member& member : members) world_ranks.push_back(member.world_rank);
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group part = MPI_GROUP_NULL;
  MPI_Comm result = MPI_COMM_NULL;
  require_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "making a communicator");
  require_mpi(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &part),
              "making a communicator");
  require_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, part, tag, &result), "making a communicator");
  require_mpi(MPI_Comm_set_errhandler(result, MPI_ERRORS_RETURN), "making a communicator");
  require_mpi(MPI_Group_free(&part), "making a communicator");
  require_mpi(MPI_Group_free(&world), "making a communicator");
  return result;
}

/// Two members on one GPU; an empty text if there are none.
std::string duplicate(const std::vector<Member>& members)
{
  for (std::size_t i = 0; i < members.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (members[i].host == members[j].host && members[i].device == members[j].device)
        return fmt::format("Duplicate GPU detected : rank {} and rank {} both on CUDA device {:x}", j, i,
                           (members[i].device + 1) << 12);
  return "";
}

// ---- Progress while the host is busy elsewhere --------------------------------------------------------------------------

/// While communicators exist, lets work run that no host thread of this process waits for, because other ranks may wait
/// for it: when no call has been made for a while.
void look_after_work()
{
  std::uint64_t turns = 0;
  for (;;) {
    usleep(5000);
    const std::lock_guard lock(machine().mutex);
    is_looked_after = !communicators.empty();
    if (!is_looked_after) return;
    const bool pending = std::any_of(communicators.begin(), communicators.end(),
                                     [](const auto& known) { return known->ended != known->queued; });
    if (pending && turns == machine().turns) {
      run_what_can_run();
      close_device_memory();
    }
    turns = machine().turns;
  }
}

// ---- Calls on a communicator -----------------------------------------------------------------------------------------

/// One call that names a communicator.
template <class Body>
ncclResult_t communicator_call(const char* name, ncclComm_t communicator, Body body)
{
  return nccl_call(name, [&] {
    const std::shared_ptr<ncclComm> known = find_communicator(communicator);
    return known == nullptr ? nccl_error(ncclInvalidArgument, fmt::format("{}: no such communicator", name))
                            : body(known);
  });
}

void wait_for_work(const ncclComm& communicator)
{
  run_until([&communicator] { return communicator.ended == communicator.queued; });
}

}  // namespace

namespace emulated_cuda {

std::shared_ptr<ncclComm> find_communicator(ncclComm_t communicator)
{
  for (const auto& known : communicators)
    if (known.get() == communicator) return known;
  return nullptr;
}

ncclResult_t nccl_error(ncclResult_t code, const std::string& why)
{
  last_error = why;
  return code;
}

}  // namespace emulated_cuda

ncclResult_t ncclGetUniqueId(ncclUniqueId* id)
{
  return nccl_call("ncclGetUniqueId", [&] {
    static int made = 0;
    int is_initialized = 0;
    require_mpi(MPI_Initialized(&is_initialized), "making an id");
    if (is_initialized == 0) return nccl_error(ncclSystemError, "MPI has not been started");
    IdContent content{0, made++};
    require_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &content.maker), "making an id");
    *id = {};
    std::memcpy(id->internal, &content, sizeof content);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank)
{
  return nccl_call("ncclCommInitRank", [&] {
    *communicator = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks)
      return nccl_error(ncclInvalidArgument, "ncclCommInitRank: no such rank");
    IdContent content{};
    std::memcpy(&content, id.internal, sizeof content);
    if (current_device().error != cudaSuccess) return nccl_error(ncclUnhandledCudaError, "the device is lost");
    const auto made = std::make_shared<ncclComm>();
    made->device = &current_device();
    made->rank = rank;
    made->ranks = ranks;
    std::string error;
    Turn::without([&] {
      try {
        Member self{0, rank, made->device->number, this_host()};
        require_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &self.world_rank), "joining a communicator");
        const std::vector<Member> members = gather_members(content, self, ranks);
        error = duplicate(members);
        if (error.empty()) made->messages = communicator_of(members, first_tag + content.number % tags);
      } catch (const std::runtime_error& failure) {
        error = failure.what();
      }
    });
    if (!error.empty()) return nccl_error(ncclInvalidUsage, error);
    communicators.push_back(made);
    if (!is_looked_after) std::thread(look_after_work).detach();
    is_looked_after = true;
    *communicator = made.get();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator)
{
  return communicator_call("ncclCommFinalize", communicator, [&](const std::shared_ptr<ncclComm>& known) {
    wait_for_work(*known);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator)
{
  return communicator_call("ncclCommDestroy", communicator, [&](const std::shared_ptr<ncclComm>& known) {
    wait_for_work(*known);
    std::erase(communicators, known);
    Turn::without([&known] { MPI_Comm_free(&known->messages); });
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t communicator)
{
  return communicator_call("ncclCommAbort", communicator, [&](const std::shared_ptr<ncclComm>& known) {
    known->aborted = true;
    std::erase(communicators, known);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error)
{
  return communicator_call("ncclCommGetAsyncError", communicator, [&](const std::shared_ptr<ncclComm>& known) {
    if (fault_due("ncclAsync")) {
      known->error = nccl_error(ncclRemoteError, "another rank was asked to fail");
    }
    *error = known->error;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCount(ncclComm_t communicator, int* ranks)
{
  return communicator_call("ncclCommCount", communicator, [&](const std::shared_ptr<ncclComm>& known) {
    *ranks = known->ranks;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommUserRank(ncclComm_t communicator, int* rank)
{
  return communicator_call("ncclCommUserRank", communicator, [&](const std::shared_ptr<ncclComm>& known) {
    *rank = known->rank;
    return ncclSuccess;
  });
}

const char* ncclGetErrorString(ncclResult_t result)
{
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t)
{
  const std::lock_guard lock(machine().mutex);
  thread_local std::string text;
  text = last_error;
  return text.c_str();
}

ncclResult_t ncclGetVersion(int* version)
{
  *version = 22809;
  return ncclSuccess;
}
