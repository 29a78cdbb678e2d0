#include "common/collectives/library.hpp"

#include <array>
#include <cstddef>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "common/base/partition.hpp"
#include "common/memory/element_sum.hpp"

namespace rankwise {

namespace {

/// MPI's datatype for a type; bf16 is sent as 16-bit words.
MPI_Datatype mpi_type(DType type)
{
  const std::array types{MPI_FLOAT, MPI_UINT16_T, MPI_DOUBLE, MPI_INT32_T, MPI_INT64_T, MPI_BYTE};
  static_assert(types.size() == dtype_count);
  return types[static_cast<std::size_t>(type)];
}

void add_bf16(void* in, void* in_out, int* count, MPI_Datatype*)
{
  add_elements(DType::bf16, in_out, in, *count);
}

/// MPI's operation for the sum of two elements.
class SumOperation {
 public:
  explicit SumOperation(DType type)
  {
    if (type != DType::bf16) return;
    check_mpi(MPI_Op_create(add_bf16, 1, &operation_), "registering the sum of bf16 with MPI");
    own_ = true;
  }
  ~SumOperation()
  {
    if (own_) MPI_Op_free(&operation_);
  }
  SumOperation(const SumOperation&) = delete;
  SumOperation& operator=(const SumOperation&) = delete;

  MPI_Op handle() const { return operation_; }

 private:
  MPI_Op operation_ = MPI_SUM;
  bool own_ = false;
};

/// A count as int, as MPI requires.
int mpi_count(std::int64_t n)
{
  check(n <= std::numeric_limits<int>::max(), fmt::format("MPI's collectives cannot take {} elements at once", n));
  return static_cast<int>(n);
}

/// Sizes and offsets of blocks, as MPI requires them.
struct MpiBlocks {
  std::vector<int> counts, places;

  explicit MpiBlocks(const Blocks& blocks)
  {
    for (const Range& block : blocks) {
      counts.push_back(mpi_count(block.count));
      places.push_back(mpi_count(block.first));
    }
  }
};

/// The shards of all ranks.
MpiBlocks mpi_shards(const Tensor& values, const Group& group)
{
  Blocks shards;
  for (int r = 0; r < group.ranks(); ++r) shards.push_back(Partition(values.elements(), group.ranks()).shard(r));
  return MpiBlocks(shards);
}

/// Host copy of a tensor's elements for MPI; the tensor itself if it is in host memory already.
class OnHost {
 public:
  OnHost(const Tensor& values, Group& group) : values_(values), host_(values), group_(group)
  {
    if (group.memory().device->kind() == DeviceKind::cpu || values.elements() == 0) return;
    const DeviceMemory memory{&group.memory().device->host_memory(), group.memory().ledger, Tier::host};
    buffer_ = Buffer(memory, Category::communication, values.type(), {values.elements()},
                     "host copy for an MPI collective");
    host_ = buffer_.tensor();
    group_.stream().copy(host_, values_);
    group_.stream().synchronise();
  }
  /// Copies MPI's result in @p from back to elements @p to of the device's tensor.
  void put_back(Range to, Range from)
  {
    if (buffer_.tensor().empty() || to.empty()) return;
    group_.stream().copy(values_.slice(to), host_.slice(from));
    group_.stream().synchronise();
  }
  void put_back() { put_back({0, values_.elements()}, {0, values_.elements()}); }

  const Tensor& tensor() const { return host_; }
  bool carried() const { return !buffer_.tensor().empty(); }

 private:
  Tensor values_, host_;
  Group& group_;
  Buffer buffer_;
};

/// An all-to-all of GPU memory: the messages of all blocks, started together. Nothing but NCCL sees them.
void nccl_all_to_all(const Tensor& sent, const Blocks& to, const Tensor& received, const Blocks& from, Group& group)
{
  std::vector<Transfer> transfers;
  for (int q = 0; q < group.ranks(); ++q) {
    const auto block = static_cast<std::size_t>(q);
    transfers.push_back({Transfer::Direction::send, sent.slice(to[block]), q});
    transfers.push_back({Transfer::Direction::receive, received.slice(from[block]), q});
  }
  group.nccl()->finish(group.nccl()->start(transfers));
}

}  // namespace

void library_reduce_scatter_sum(const Tensor& values, Group& group)
{
  group.count("reduce-scatter", {.bytes = values.bytes()});
  check_summable(values.type());
  if (group.nccl()) return group.nccl()->reduce_scatter_sum(values);
  const SumOperation sum(values.type());
  const MpiBlocks shards = mpi_shards(values, group);
  const Range own = Partition(values.elements(), group.ranks()).shard(group.rank());
  OnHost host(values, group);
  const Tensor result = host.carried() ? host.tensor() : group.scratch(values.type(), own.count);
  check_mpi(MPI_Reduce_scatter(host.carried() ? MPI_IN_PLACE : values.raw(), result.raw(), shards.counts.data(),
                               mpi_type(values.type()), sum.handle(), group.communicator().handle()),
            "MPI_Reduce_scatter");
  if (host.carried())
    host.put_back(own, {0, own.count});
  else if (!own.empty())
    group.stream().copy(values.slice(own), result);
}

void library_all_gather(const Tensor& values, Group& group)
{
  const Range own = Partition(values.elements(), group.ranks()).shard(group.rank());
  group.count("all-gather", {.bytes = own.count * bytes_of(values.type())});
  if (group.nccl()) return group.nccl()->all_gather(values);
  const MpiBlocks shards = mpi_shards(values, group);
  OnHost host(values, group);
  check_mpi(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, host.tensor().raw(), shards.counts.data(),
                           shards.places.data(), mpi_type(values.type()), group.communicator().handle()),
            "MPI_Allgatherv");
  host.put_back();
}

void library_all_reduce_sum(const Tensor& values, Group& group)
{
  group.count("all-reduce", {.bytes = values.bytes()});
  check_summable(values.type());
  if (group.nccl()) return group.nccl()->all_reduce_sum(values);
  const SumOperation sum(values.type());
  OnHost host(values, group);
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, host.tensor().raw(), mpi_count(values.elements()), mpi_type(values.type()),
                          sum.handle(), group.communicator().handle()),
            "MPI_Allreduce");
  host.put_back();
}

void library_broadcast(const Tensor& values, int root, Group& group)
{
  if (group.rank() == root) group.count("broadcast", {.bytes = values.bytes()});
  if (group.nccl()) return group.nccl()->broadcast(values, root);
  OnHost host(values, group);
  check_mpi(MPI_Bcast(host.tensor().raw(), mpi_count(values.elements()), mpi_type(values.type()), root,
                      group.communicator().handle()),
            "MPI_Bcast");
  host.put_back();
}

void library_reduce_sum(const Tensor& values, int root, Group& group)
{
  group.count("reduce", {.bytes = values.bytes()});
  check_summable(values.type());
  if (group.nccl()) return group.nccl()->reduce_sum(values, root);
  const SumOperation sum(values.type());
  const bool here = group.rank() == root;
  OnHost host(values, group);
  auto* const data = static_cast<std::byte*>(host.tensor().raw());
  // For a root other than rank 0, MPICH 4.0 takes MPI_IN_PLACE for an address and crashes: it gets a copy.
  std::vector<std::byte> copy;
  if (here && root != 0) copy.assign(data, data + values.bytes());
  const void* const own = !here ? data : root == 0 ? MPI_IN_PLACE : copy.data();
  check_mpi(MPI_Reduce(own, here ? data : nullptr, mpi_count(values.elements()), mpi_type(values.type()),
                       sum.handle(), root, group.communicator().handle()),
            "MPI_Reduce");
  if (here) host.put_back();
}

void library_all_to_all(const Tensor& sent, const Tensor& received, Group& group)
{
  const std::int64_t b = sent.elements() / group.ranks();
  const Blocks blocks = blocks_of(std::vector<std::int64_t>(static_cast<std::size_t>(group.ranks()), b));
  group.count("all-to-all", {.bytes = sent.bytes()});
  if (group.nccl()) return nccl_all_to_all(sent, blocks, received, blocks, group);
  const OnHost out(sent, group);
  OnHost in(received, group);
  check_mpi(MPI_Alltoall(out.tensor().raw(), mpi_count(b), mpi_type(sent.type()), in.tensor().raw(), mpi_count(b),
                         mpi_type(received.type()), group.communicator().handle()),
            "MPI_Alltoall");
  in.put_back();
}

void library_all_to_all_v(const Tensor& sent, const Blocks& to, const Tensor& received, const Blocks& from,
                          Group& group)
{
  group.count("all-to-all-v", {.bytes = sent.bytes()});
  if (group.nccl()) return nccl_all_to_all(sent, to, received, from, group);
  const MpiBlocks out_blocks(to), in_blocks(from);
  const OnHost out(sent, group);
  OnHost in(received, group);
  check_mpi(MPI_Alltoallv(out.tensor().raw(), out_blocks.counts.data(), out_blocks.places.data(),
                          mpi_type(sent.type()), in.tensor().raw(), in_blocks.counts.data(),
                          in_blocks.places.data(), mpi_type(received.type()), group.communicator().handle()),
            "MPI_Alltoallv");
  in.put_back();
}

void library_barrier(Group& group)
{
  check_mpi(MPI_Barrier(group.communicator().handle()), "MPI_Barrier");
}

}  // namespace rankwise
