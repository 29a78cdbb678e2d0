#include <cstring>
#include <mpi.h>
#include <nccl.h>
#include <unistd.h>

#include "tests/catch.hpp"
#include "tests/emulated_cuda/helpers.hpp"
#include "tests/emulated_cuda/machine.hpp"

using namespace emulated_cuda;

namespace {

int rank_in_world()
{
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int ranks_of_world()
{
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

/// An id that one rank of @p group has made.
ncclUniqueId shared_id(MPI_Comm group)
{
  int rank = 0;
  MPI_Comm_rank(group, &rank);
  ncclUniqueId id{};
  if (rank == 0) REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, group);
  return id;
}

/// One rank of a communicator of the ranks of @p group, each on a device of its own.
struct Communicator {
  ncclComm_t handle = nullptr;
  int rank = 0;
  int ranks = 1;

  explicit Communicator(MPI_Comm group = MPI_COMM_WORLD)
  {
    require(cudaSetDevice(rank_in_world()));
    MPI_Comm_rank(group, &rank);
    MPI_Comm_size(group, &ranks);
    const ncclUniqueId id = shared_id(group);
    REQUIRE(ncclCommInitRank(&handle, ranks, id, rank) == ncclSuccess);
  }
  ~Communicator()
  {
    if (handle != nullptr) ncclCommDestroy(handle);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
};

/// Element @p i of what rank @p rank gives: differs by both, and sums are exact.
float element(int rank, std::size_t i)
{
  return static_cast<float>((rank + 1) * 100 + static_cast<int>(i % 37));
}

std::vector<float> elements(int rank, std::size_t count)
{
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = element(rank, i);
  return values;
}

float sum_over_ranks(int ranks, std::size_t i)
{
  float sum = 0.0f;
  for (int r = 0; r < ranks; ++r) sum += element(r, i);
  return sum;
}

__global__ void add_one(float* values, int count)
{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += 1.0f;
}

constexpr std::size_t n = 1001;

}  // namespace

TEST_CASE("nccl: neighbours exchange in a group, between kernels of the stream")
{
  const Communicator all;
  const TestStream stream;
  const DeviceArray<float> mine(elements(all.rank, n), stream);
  const DeviceArray<float> theirs(n);
  const int next = (all.rank + 1) % all.ranks;
  const int previous = (all.rank + all.ranks - 1) % all.ranks;
  require(launch_on(stream, 8, 128, 0, add_one, mine.data(), n));
  REQUIRE(ncclGroupStart() == ncclSuccess);
  REQUIRE(ncclSend(mine.data(), n, ncclFloat32, next, all.handle, stream) == ncclSuccess);
  REQUIRE(ncclRecv(theirs.data(), n, ncclFloat32, previous, all.handle, stream) == ncclSuccess);
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  require(launch_on(stream, 8, 128, 0, add_one, theirs.data(), n));
  const std::vector<float> result = theirs.read(stream);
  for (std::size_t i = 0; i < n; ++i) CHECK(result[i] == element(previous, i) + 2.0f);
  int count = 0;
  int rank = -1;
  CHECK(ncclCommCount(all.handle, &count) == ncclSuccess);
  CHECK(ncclCommUserRank(all.handle, &rank) == ncclSuccess);
  CHECK(count == all.ranks);
  CHECK(rank == all.rank);
}

TEST_CASE("nccl: all-reduce, reduce and broadcast")
{
  const Communicator all;
  const TestStream stream;
  const DeviceArray<float> mine(elements(all.rank, n), stream);
  const DeviceArray<float> sum(n);
  const DeviceArray<float> at_root(elements(all.rank, n), stream);
  const DeviceArray<float> from_root(elements(all.rank, n), stream);
  const int root = all.ranks - 1;
  REQUIRE(ncclAllReduce(mine.data(), sum.data(), n, ncclFloat32, ncclSum, all.handle, stream) == ncclSuccess);
  REQUIRE(ncclAllReduce(mine.data(), mine.data(), n, ncclFloat32, ncclSum, all.handle, stream) == ncclSuccess);
  REQUIRE(ncclReduce(at_root.data(), at_root.data(), n, ncclFloat32, ncclSum, root, all.handle, stream) ==
          ncclSuccess);
  REQUIRE(ncclBroadcast(from_root.data(), from_root.data(), n, ncclFloat32, root, all.handle, stream) ==
          ncclSuccess);
  const auto sums = sum.read(stream);
  const auto sums_in_place = mine.read(stream);
  const auto sums_at_root = at_root.read(stream);
  const auto roots = from_root.read(stream);
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(sums[i] == sum_over_ranks(all.ranks, i));
    CHECK(sums_in_place[i] == sums[i]);
    CHECK(sums_at_root[i] == (all.rank == root ? sums[i] : element(all.rank, i)));
    CHECK(roots[i] == element(root, i));
  }
}

TEST_CASE("nccl: reduce-scatter and all-gather")
{
  const Communicator all;
  const TestStream stream;
  const std::size_t part = 50;
  const std::size_t whole = part * static_cast<std::size_t>(all.ranks);
  const DeviceArray<float> mine(elements(all.rank, whole), stream);
  const DeviceArray<float> sum(part);
  const DeviceArray<float> gathered(whole);
  REQUIRE(ncclReduceScatter(mine.data(), sum.data(), part, ncclFloat32, ncclSum, all.handle, stream) ==
          ncclSuccess);
  REQUIRE(ncclAllGather(sum.data(), gathered.data(), part, ncclFloat32, all.handle, stream) == ncclSuccess);
  const auto sums = gathered.read(stream);
  for (std::size_t i = 0; i < whole; ++i) CHECK(sums[i] == sum_over_ranks(all.ranks, i));
}

TEST_CASE("nccl: bf16 is added in f32 and rounded once")
{
  const Communicator all;
  const TestStream stream;
  // 1.0 and 2^-8: the sum of three and more halves of a last place needs f32.
  const std::vector<std::uint16_t> values = {0x3f80, static_cast<std::uint16_t>(all.rank == 0 ? 0x3f80 : 0x3b80)};
  const DeviceArray<std::uint16_t> array(values, stream);
  REQUIRE(ncclAllReduce(array.data(), array.data(), 2, ncclBfloat16, ncclSum, all.handle, stream) == ncclSuccess);
  const auto sums = array.read(stream);
  const std::uint16_t counts[] = {0x3f80, 0x4000, 0x4040, 0x4080};
  const std::uint16_t rounded[] = {0x3f80, 0x3f80, 0x3f81, 0x3f82};
  CHECK(sums[0] == counts[all.ranks - 1]);
  CHECK(sums[1] == rounded[all.ranks - 1]);
}

TEST_CASE("nccl: operations of one communicator keep their order, in whatever streams they are")
{
  const Communicator all;
  const TestStream first;
  const TestStream second;
  for (int i = 0; i < 10; ++i) {
    const DeviceArray<float> ones({1.0f}, first);
    const DeviceArray<float> tens({10.0f}, second);
    REQUIRE(ncclAllReduce(ones.data(), ones.data(), 1, ncclFloat32, ncclSum, all.handle, first) == ncclSuccess);
    REQUIRE(ncclAllReduce(tens.data(), tens.data(), 1, ncclFloat32, ncclSum, all.handle, second) == ncclSuccess);
    CHECK(ones.read(first)[0] == 1.0f * static_cast<float>(all.ranks));
    CHECK(tens.read(second)[0] == 10.0f * static_cast<float>(all.ranks));
  }
}

TEST_CASE("nccl: halves of the world have communicators of their own")
{
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank_in_world() % 2, -rank_in_world(), &half);
  {
    const Communicator mine(half);
    const Communicator all;
    const TestStream stream;
    const DeviceArray<float> in_half({1.0f}, stream);
    const DeviceArray<float> in_all({1.0f}, stream);
    REQUIRE(ncclAllReduce(in_half.data(), in_half.data(), 1, ncclFloat32, ncclSum, mine.handle, stream) ==
            ncclSuccess);
    REQUIRE(ncclAllReduce(in_all.data(), in_all.data(), 1, ncclFloat32, ncclSum, all.handle, stream) ==
            ncclSuccess);
    CHECK(in_half.read(stream)[0] == static_cast<float>(mine.ranks));
    CHECK(in_all.read(stream)[0] == static_cast<float>(all.ranks));
  }
  MPI_Comm_free(&half);
}

TEST_CASE("nccl: work continues while its host waits elsewhere")
{
  const Communicator all;
  const TestStream stream;
  const DeviceArray<float> array({1.0f}, stream);
  REQUIRE(ncclAllReduce(array.data(), array.data(), 1, ncclFloat32, ncclSum, all.handle, stream) == ncclSuccess);
  if (all.rank != 0) MPI_Barrier(MPI_COMM_WORLD);
  CHECK(array.read(stream)[0] == static_cast<float>(all.ranks));
  if (all.rank == 0) MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("nccl: sizes that differ are an error of the communicator")
{
  if (ranks_of_world() < 2) return;
  Communicator all;
  const TestStream stream;
  const DeviceArray<float> array(std::vector<float>(20), stream);
  if (all.rank == 0) REQUIRE(ncclSend(array.data(), 10, ncclFloat32, 1, all.handle, stream) == ncclSuccess);
  if (all.rank == 1) REQUIRE(ncclRecv(array.data(), 11, ncclFloat32, 0, all.handle, stream) == ncclSuccess);
  require(cudaStreamSynchronize(stream));
  ncclResult_t error = ncclSuccess;
  CHECK(ncclCommGetAsyncError(all.handle, &error) == ncclSuccess);
  CHECK(error == (all.rank == 1 ? ncclInternalError : ncclSuccess));
  if (all.rank == 1)
    CHECK(std::string(ncclGetLastError(all.handle)) == "rank 1 expects 44 bytes from rank 0, which sends 40");
}

TEST_CASE("nccl: work of a communicator that is aborted ends")
{
  Communicator all;
  const TestStream stream;
  const DeviceArray<float> array({5.0f}, stream);
  if (all.ranks > 1 && all.rank == 0) {
    REQUIRE(ncclRecv(array.data(), 1, ncclFloat32, 1, all.handle, stream) == ncclSuccess);
    for (int i = 0; i < 20; ++i) CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  }
  REQUIRE(ncclCommAbort(all.handle) == ncclSuccess);
  all.handle = nullptr;
  CHECK(array.read(stream)[0] == 5.0f);
}

TEST_CASE("nccl: two ranks on one device are refused")
{
  if (ranks_of_world() < 2) return;
  require(cudaSetDevice(0));
  const ncclUniqueId id = shared_id(MPI_COMM_WORLD);
  ncclComm_t handle = nullptr;
  CHECK(ncclCommInitRank(&handle, ranks_of_world(), id, rank_in_world()) == ncclInvalidUsage);
  CHECK(std::string(ncclGetLastError(nullptr)) ==
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000");
}

TEST_CASE("nccl: wrong calls are refused, in a group by its end too")
{
  const Communicator all;
  const TestStream stream;
  const DeviceArray<float> array({5.0f}, stream);
  CHECK(ncclSend(array.data(), 1, ncclFloat32, all.ranks, all.handle, stream) == ncclInvalidArgument);
  CHECK(ncclSend(array.data(), 1, ncclFloat32, 0, nullptr, stream) == ncclInvalidArgument);
  CHECK(ncclSend(array.data(), 1, ncclFloat32, 0, all.handle, nullptr) == ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  REQUIRE(ncclGroupStart() == ncclSuccess);
  CHECK(ncclSend(array.data(), 1, ncclFloat32, -1, all.handle, stream) == ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  require(cudaStreamSynchronize(stream));
}

// The last case: it loses the devices.
TEST_CASE("nccl: a buffer of the host loses the device, and the communicator can still be aborted")
{
  Communicator all;
  const TestStream stream;
  float on_host = 1.0f;
  REQUIRE(ncclAllReduce(&on_host, &on_host, 1, ncclFloat32, ncclSum, all.handle, stream) == ncclSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  ncclResult_t error = ncclSuccess;
  CHECK(ncclCommGetAsyncError(all.handle, &error) == ncclSuccess);
  CHECK(error == ncclUnhandledCudaError);
  CHECK(ncclAllReduce(&on_host, &on_host, 1, ncclFloat32, ncclSum, all.handle, stream) == ncclUnhandledCudaError);
  CHECK(ncclCommAbort(all.handle) == ncclSuccess);
  all.handle = nullptr;
}
