// Memory that the ranks of a node share: its addresses, its barrier, and that all of it is freed.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include <sys/statvfs.h>

#include "common/messages/shared_memory.hpp"
#include "common/program/time_ledger.hpp"
#include "tests/catch.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

int open_windows = 0;  // of this process, by the count of the functions below

/// Memory of a device, for the time of a scope.
struct Piece {
  Piece(Device& from, std::int64_t size) : device(from), bytes(size), data(from.allocate(size)) {}
  ~Piece() { device.release(data, bytes); }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  int* ints() const { return static_cast<int*>(data); }
  std::byte* at(std::int64_t offset) const { return static_cast<std::byte*>(data) + offset; }

  Device& device;
  std::int64_t bytes;
  void* data;
};

double processor_time_s()
{
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

// MPI's profiling interface: the program's functions come before the library's.
extern "C" {
int MPI_Win_allocate_shared(MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm ranks, void* own, MPI_Win* window)
{
  ++open_windows;
  return PMPI_Win_allocate_shared(bytes, unit, info, ranks, own, window);
}
int MPI_Win_free(MPI_Win* window)
{
  --open_windows;
  return PMPI_Win_free(window);
}
}

TEST_CASE("SharedMemory: every window is freed")
{
  const Communicator ranks = Communicator::world();
  const int before = open_windows;
  {
    SharedMemory memory(ranks);
    const int with_none = open_windows;
    CHECK(with_none == before + 1);
    for (int i = 0; i < 40; ++i) {
      const Piece a(memory.device(), 100 * i);
      const Piece b(memory.device(), 1 << 20);
      CHECK(open_windows == with_none + 2);
    }
    CHECK(open_windows == with_none);
  }
  CHECK(open_windows == before);
}

TEST_CASE("SharedMemory: each rank has an aligned buffer of its own size that overlaps no other")
{
  const Communicator ranks = Communicator::world();
  SharedMemory memory(ranks);
  for (const std::int64_t bytes : {0, 1, 63, 4096, 100'001}) {
    const std::int64_t own = bytes * (1 + ranks.rank());
    const Piece piece(memory.device(), own);
    CHECK(reinterpret_cast<std::uintptr_t>(piece.data) % 64 == 0);
#ifdef RANKWISE_POISON
    for (std::int64_t i = 0; i < own; ++i) REQUIRE(*piece.at(i) == std::byte{0xFF});
#endif
    memory.barrier();
    std::memset(piece.data, ranks.rank() + 1, static_cast<std::size_t>(own));
    memory.barrier();
    for (std::int64_t i = 0; i < own; ++i) REQUIRE(*piece.at(i) == std::byte(ranks.rank() + 1));
    memory.barrier();
  }
}

TEST_CASE("peers: addresses of the same offset in every rank's buffer")
{
  const Communicator ranks = Communicator::world();
  const int N = ranks.ranks(), r = ranks.rank();
  SharedMemory memory(ranks);
  // Later buffers have the addresses of freed ones: what was known of a freed buffer must not be used for the next.
  for (int i = 0; i < 30; ++i) {
    const std::int64_t bytes = 4096 * (1 + (i * 7 + r) % 5);
    const Piece a(memory.device(), bytes), b(memory.device(), bytes);
    a.ints()[3] = 1000 * i + r;
    b.ints()[3] = 1000 * i + 500 + r;
    for (const auto* piece : {&b, &a}) {
      const std::span<void* const> found = memory.peers(piece->ints() + 3);
      REQUIRE(found.size() == static_cast<std::size_t>(N));
      REQUIRE(found[static_cast<std::size_t>(r)] == piece->ints() + 3);
      for (int q = 0; q < N; ++q)
        REQUIRE(*static_cast<int*>(found[static_cast<std::size_t>(q)]) == 1000 * i + (piece == &b ? 500 : 0) + q);
    }
    memory.barrier();
  }
}

TEST_CASE("peers: empty on all ranks when one passes another buffer, another offset, or ordinary memory")
{
  const Communicator ranks = Communicator::world();
  const int N = ranks.ranks();
  SharedMemory memory(ranks);
  const Piece a(memory.device(), 4096), b(memory.device(), 4096);
  std::vector<int> ordinary(16);
  CHECK(memory.peers(ordinary.data()).empty());
  CHECK(memory.peers(nullptr).empty());
  for (int odd = 0; odd < N && N > 1; ++odd) {
    const bool other = ranks.rank() == odd;
    CHECK(memory.peers(other ? b.data : a.data).empty());
    CHECK(memory.peers(a.at(other ? 64 : 0)).empty());
    CHECK(memory.peers(other ? static_cast<const void*>(ordinary.data()) : a.data).empty());
    CHECK(memory.peers(a.data).size() == static_cast<std::size_t>(N));
  }
  CHECK(memory.peers(a.at(4095)).size() == static_cast<std::size_t>(N));
  CHECK(memory.peers(a.at(4096)).empty());
  void* gone = nullptr;
  {
    const Piece c(memory.device(), 4096);
    gone = c.data;
    CHECK(memory.peers(gone).size() == static_cast<std::size_t>(N));
  }
  CHECK(memory.peers(gone).empty());
}

TEST_CASE("SharedMemory: an allocation that does not fit is an Error on all ranks, and later ones work")
{
  const Communicator ranks = Communicator::world();
  SharedMemory memory(ranks);
  CHECK_THROWS_AS(memory.device().allocate(std::int64_t{1} << 50), Error);
  CHECK_THROWS_WITH(memory.device().allocate(ranks.rank() == 0 ? std::int64_t{1} << 50 : 1),
                    Contains("cannot allocate") && Contains("of shared memory"));
  struct statvfs files {};
  if (ranks.ranks() > 1 && statvfs("/dev/shm", &files) == 0) {
    // The memory would suffice for one rank, but not for all.
    std::int64_t each = static_cast<std::int64_t>(files.f_bavail * files.f_frsize) / ranks.ranks() / 10 * 12;
    check_mpi(MPI_Bcast(&each, 1, MPI_INT64_T, 0, ranks.handle()), "agreeing on a size");
    CHECK_THROWS_AS(memory.device().allocate(each), Error);
  }
  const Piece piece(memory.device(), 64);
  CHECK(memory.peers(piece.data).size() == static_cast<std::size_t>(ranks.ranks()));
}

TEST_CASE("barrier: no rank is a round ahead, whichever rank is late")
{
  const Communicator ranks = Communicator::world();
  const int N = ranks.ranks(), r = ranks.rank();
  SharedMemory memory(ranks);
  const Piece piece(memory.device(), 4096);
  const std::span<void* const> all = memory.peers(piece.data);
  for (int round = 0; round < 3000; ++round) {
    if (round % 300 == 0 && round / 300 % N == r) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    piece.ints()[round % 2] = round;
    memory.barrier();
    for (void* other : all) REQUIRE(static_cast<int*>(other)[round % 2] == round);
  }
  memory.barrier();
}

TEST_CASE("next_areas: two consecutive exchanges do not disturb each other")
{
  const Communicator ranks = Communicator::world();
  const int N = ranks.ranks(), r = ranks.rank();
  SharedMemory memory(ranks);
  const std::int64_t count = SharedMemory::area_bytes / 4;
  std::vector<int> expected(static_cast<std::size_t>(count));
  for (int turn = 0; turn < 60; ++turn) {
    const std::span<std::byte* const> areas = memory.next_areas();
    std::fill_n(reinterpret_cast<int*>(areas[static_cast<std::size_t>(r)]), count, 100 * turn + r);
    memory.barrier();
    for (int step = 1; step <= N; ++step) {
      const int q = (r + step) % N;
      std::fill(expected.begin(), expected.end(), 100 * turn + q);
      REQUIRE(std::memcmp(expected.data(), areas[static_cast<std::size_t>(q)], SharedMemory::area_bytes) == 0);
    }
  }
}

TEST_CASE("barrier: ranks that wait long sleep")
{
  const Communicator ranks = Communicator::world();
  SharedMemory memory(ranks);
  memory.barrier();
  const double before = processor_time_s();
  const Stopwatch clock;
  if (ranks.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  memory.barrier();
  CHECK(processor_time_s() - before < 0.25 * std::max(0.4, clock.seconds()));  // rank 0 may sleep longer
}

TEST_CASE("barrier: messages that are under way arrive meanwhile")
{
  const Communicator ranks = Communicator::world();
  if (ranks.ranks() == 1) return;
  SharedMemory memory(ranks);
  // A message of this size is sent only while the receiver takes part; and rank 1 reaches the barrier when it has been
  // sent.
  std::vector<std::byte> data(8 << 20, std::byte(ranks.rank() + 1));
  const int bytes = static_cast<int>(data.size());
  MPI_Request request = MPI_REQUEST_NULL;
  if (ranks.rank() == 0)
    check_mpi(MPI_Irecv(data.data(), bytes, MPI_BYTE, 1, 0, ranks.handle(), &request), "receiving");
  if (ranks.rank() == 1) check_mpi(MPI_Send(data.data(), bytes, MPI_BYTE, 0, 0, ranks.handle()), "sending");
  memory.barrier();
  check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "receiving");
  if (ranks.rank() == 0) CHECK(data == std::vector<std::byte>(data.size(), std::byte{2}));
}
