#include "common/messages/nccl_transport.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nccl.h>
#include <vector>

#include <fmt/format.h>

#include "common/base/late_binding.hpp"
#include "common/base/partition.hpp"
#include "common/cuda/cuda.hpp"
#include "common/cuda/devices.hpp"
#include "common/messages/communicator.hpp"
#include "common/program/wait.hpp"

#define NCCL(function) RANKWISE_LATE(RANKWISE_NCCL_LIBRARY, function)

namespace rankwise {

namespace {

/// NCCL's datatype for a type.
ncclDataType_t nccl_type(DType type)
{
  constexpr std::array types{ncclFloat32, ncclBfloat16, ncclFloat64, ncclInt32, ncclInt64, ncclUint8};
  static_assert(types.size() == dtype_count);
  return types[static_cast<std::size_t>(type)];
}

std::size_t count_of(const Tensor& values)
{
  return static_cast<std::size_t>(values.elements());
}

class Nccl final : public NcclTransport {
 public:
  Nccl(const Communicator& communicator, Stream& stream) : communicator_(communicator), stream_(stream)
  {
    ncclUniqueId id{};
    if (rank() == 0) check_nccl(NCCL(ncclGetUniqueId)(&id), "naming a communicator");
    check_mpi(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, communicator.handle()), "naming NCCL's communicator");
    cuda_stream(stream_);  // also selects this thread's GPU
    check_nccl(NCCL(ncclCommInitRank)(&nccl_, ranks(), id, rank()), "starting");
  }
  ~Nccl() override
  {
    // During stack unwinding the other ranks might not take part in closing the communicator.
    if (nccl_ != nullptr)
      std::uncaught_exceptions() > exceptions_ ? NCCL(ncclCommAbort)(nccl_) : NCCL(ncclCommDestroy)(nccl_);
  }
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  int rank() const override { return communicator_.rank(); }
  int ranks() const override { return communicator_.ranks(); }
  Stream& stream() override { return stream_; }
  void enter(const Collective&) override {}
  void leave() override {}

  Ticket start(std::span<const Transfer> transfers) override
  {
    const cudaStream_t stream = cuda_stream(stream_);
    auto free = std::find_if(batches_.begin(), batches_.end(), [](const Batch& b) { return !b.open; });
    if (free == batches_.end()) free = batches_.emplace(batches_.end());
    check_nccl(NCCL(ncclGroupStart)(), "starting messages");
    for (const Transfer& transfer : transfers) {
      check(0 <= transfer.peer && transfer.peer < ranks(),
            fmt::format("a message between rank {} and rank {} of {}", rank(), transfer.peer, ranks()));
      const auto bytes = static_cast<std::size_t>(transfer.data.bytes());
      if (bytes == 0) continue;
      if (transfer.direction == Transfer::Direction::send)
        check_nccl(NCCL(ncclSend)(transfer.data.raw(), bytes, ncclUint8, transfer.peer, nccl_, stream),
                   "sending a message", transfer.where);
      else
        check_nccl(NCCL(ncclRecv)(transfer.data.raw(), bytes, ncclUint8, transfer.peer, nccl_, stream),
                   "receiving a message", transfer.where);
    }
    check_nccl(NCCL(ncclGroupEnd)(), "starting messages");
    *free = {stream_.record(), true};
    return free - batches_.begin();
  }

  void finish(Ticket ticket) override
  {
    check(0 <= ticket && ticket < static_cast<Ticket>(batches_.size()) &&
              batches_[static_cast<std::size_t>(ticket)].open,
          "finish() was called for transfers that are not in flight");
    Batch& batch = batches_[static_cast<std::size_t>(ticket)];
    wait_for(batch.done);
    batch = {};
  }

  void reduce_scatter_sum(const Tensor& values) override
  {
    for_each_shard(values, [&](const Tensor& shard, int r) {
      return NCCL(ncclReduce)(shard.raw(), shard.raw(), count_of(shard), nccl_type(shard.type()), ncclSum, r, nccl_,
                              cuda_stream(stream_));
    });
  }

  void all_gather(const Tensor& values) override
  {
    for_each_shard(values, [&](const Tensor& shard, int r) {
      return NCCL(ncclBroadcast)(shard.raw(), shard.raw(), count_of(shard), nccl_type(shard.type()), r, nccl_,
                                 cuda_stream(stream_));
    });
  }

  void all_reduce_sum(const Tensor& values) override
  {
    call(NCCL(ncclAllReduce)(values.raw(), values.raw(), count_of(values), nccl_type(values.type()), ncclSum, nccl_,
                             cuda_stream(stream_)),
         "ncclAllReduce");
  }

  void broadcast(const Tensor& values, int root) override
  {
    call(NCCL(ncclBroadcast)(values.raw(), values.raw(), count_of(values), nccl_type(values.type()), root, nccl_,
                             cuda_stream(stream_)),
         "ncclBroadcast");
  }

  void reduce_sum(const Tensor& values, int root) override
  {
    call(NCCL(ncclReduce)(values.raw(), values.raw(), count_of(values), nccl_type(values.type()), ncclSum, root,
                          nccl_, cuda_stream(stream_)),
         "ncclReduce");
  }

 private:
  /// Messages that were started together; the entry is reused after they are done.
  struct Batch {
    Event done;
    bool open = false;
  };

  /// Throws Error unless @p code is ncclSuccess, with NCCL's text; with CUDA's if a kernel or a CUDA call failed
  /// first, because NCCL then reports only that some CUDA error occurred.
  void check_nccl(ncclResult_t code, std::string_view doing, SourceLocation where = SourceLocation::current()) const
  {
    if (code == ncclSuccess) return;
    const cudaError_t cause = code == ncclUnhandledCudaError ? cudaStreamQuery(cuda_stream(stream_)) : cudaSuccess;
    if (cause != cudaErrorNotReady) check_cuda(cause, doing, where);
    throw Error(fmt::format("NCCL failed at {}: {} ({})", doing, NCCL(ncclGetErrorString)(code),
                            NCCL(ncclGetLastError)(nccl_)),
                where);
  }

  /// Returns when a point of the stream is reached; meanwhile checks NCCL for errors.
  void wait_for(const Event& event)
  {
    const auto done = static_cast<cudaEvent_t>(event.handle());
    spin_then_nap([&] {
      const cudaError_t code = cudaEventQuery(done);
      if (code == cudaSuccess) return true;
      if (code != cudaErrorNotReady) check_cuda(code, "waiting for messages");
      ncclResult_t state = ncclSuccess;
      check_nccl(NCCL(ncclCommGetAsyncError)(nccl_, &state), "checking the state of messages");
      check_nccl(state, "sending or receiving messages");
      return false;
    });
  }

  void call(ncclResult_t code, std::string_view name)
  {
    check_nccl(code, name);
    wait_for(stream_.record());
  }

  /// Calls f(shard r of the values, r) for all nonempty shards, as one NCCL group.
  template <class F>
  void for_each_shard(const Tensor& values, F&& f)
  {
    check_nccl(NCCL(ncclGroupStart)(), "starting a collective");
    for (int r = 0; r < ranks(); ++r) {
      const Range shard = Partition(values.elements(), ranks()).shard(r);
      if (!shard.empty()) check_nccl(f(values.slice(shard), r), "starting a collective");
    }
    call(NCCL(ncclGroupEnd)(), "starting a collective");
  }

  const Communicator& communicator_;
  Stream& stream_;
  const int exceptions_ = std::uncaught_exceptions();  // in flight at construction
  ncclComm_t nccl_ = nullptr;
  std::vector<Batch> batches_;  // by ticket
};

}  // namespace

std::unique_ptr<NcclTransport> make_nccl_transport(const Communicator& communicator, Stream& stream)
{
  return std::make_unique<Nccl>(communicator, stream);
}

}  // namespace rankwise
