// The directory of the disk tier: its lock, the checks before a run, and the bandwidth of its disk.

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <unistd.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include "common/base/error.hpp"
#include "lessons/parallel/offload/capacity.hpp"
#include "tests/catch.hpp"
#include "tests/eventually.hpp"
#include "tests/lessons/07/faulty_disk.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

constexpr std::int64_t little = disk_alignment;

void barrier()
{
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "waiting for the others");
}

/// The whole message to the user; empty if nothing is refused.
std::string refusal(const std::string& path, std::int64_t file_bytes = little, RankOf here = {0, 2})
{
  try {
    const Descriptor lock = lock_directory(path, file_bytes, world().rank(), here);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

/// A folder of rank 0 that all ranks know.
struct SharedFolder {
  SharedFolder()
  {
    int owner = getpid();
    check_mpi(MPI_Bcast(&owner, 1, MPI_INT, 0, MPI_COMM_WORLD), "naming a folder");
    path = (std::filesystem::temp_directory_path() / ("rankwise-shared-" + std::to_string(owner))).string();
    if (world().rank() == 0) std::filesystem::create_directories(path);
    barrier();
  }
  ~SharedFolder()
  {
    std::error_code ignored;
    if (world().rank() == 0) std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

TEST_CASE("lock_directory: the ranks of one job share it, and leave nothing in it")
{
  const SharedFolder folder;
  const int r = world().rank();
  BlockMemory memory;
  {
    const Descriptor lock = lock_directory(folder.path, little, r, world());
    BlockFile file(folder.path, r, 3, disk_alignment);
    for (int b = 0; b < 3; ++b) file.write(b, memory.buffer(disk_alignment, b, r).bytes());
    barrier();
    const BlockBuffer buffer = memory.buffer(disk_alignment);
    for (int b = 0; b < 3; ++b) {
      file.read(b, buffer.bytes());
      CHECK(holds(buffer, b, r));
    }
    CHECK(files_in(folder.path) == 0);
    barrier();
  }
  barrier();
  CHECK(files_in(folder.path) == 0);
  barrier();  // before rank 0 removes it
}

TEST_CASE("lock_directory: another job is refused while one uses it")
{
  const SharedFolder folder;
  const int r = world().rank();
  std::optional<Descriptor> first = lock_directory(folder.path, little, r, world());
  barrier();
  // This process is another job, as far as the system can see.
  CHECK_THAT(refusal(folder.path), Contains("error: --tier=disk:" + folder.path + " cannot be used") &&
                                       Contains("another job uses it") && Contains("Choose another directory"));
  CHECK(refusal(folder.path, little, {1, 2}).empty());  // a rank that is not the lowest of its machine
  barrier();
  first.reset();
  barrier();
  if (r == 0) CHECK(refusal(folder.path).empty());
  barrier();
}

TEST_CASE("lock_directory: is free again when its job was killed")
{
  const ScratchFolder folder;
  const std::string path = folder / "";
  REQUIRE(run_and_kill([&] {
    new Descriptor(lock_directory(path, little, 0, {0, 1}));  // never deleted
    check(!refusal(path).empty(), "the lock does not hold");
  }));
  CHECK(refusal(path).empty());
  CHECK(folder.files() == 0);
}

TEST_CASE("lock_directory: unusable directories are refused with the reason and a remedy")
{
  const ScratchFolder folder;
  CHECK_THAT(refusal(folder / "nowhere"),
             Contains("/nowhere cannot be used: No such file or directory.") && Contains("mkdir"));
  CHECK_THAT(refusal(""), Contains("cannot be used: No such file or directory."));
  make_file(folder / "file", "x");
  CHECK_THAT(refusal(folder / "file"), Contains("/file cannot be used: it is not a directory."));
  CHECK_THAT(refusal(folder / "", std::int64_t{1} << 59),
             Contains("it needs 1,152,921,504,606,846,976 bytes for the ranks of this machine, and has ") &&
                 Contains("Choose a directory on a larger disk"));
  FaultyDisk disk;
  disk.error_of_reserving = EDQUOT;
  CHECK_THAT(refusal(folder / ""),
             Contains("quota exceeded") && Contains("Choose a directory that you may write to"));
}

TEST_CASE("lock_directory: files larger than the shell allows are refused")
{
  const ScratchFolder folder;
  struct rlimit limit {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const struct rlimit allowed {
    1 << 20, limit.rlim_max
  };
  REQUIRE(setrlimit(RLIMIT_FSIZE, &allowed) == 0);
  const std::string large = refusal(folder / "", (1 << 20) + 1);
  const std::string small = refusal(folder / "", 1 << 20);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK_THAT(large, Contains("a rank's file needs 1,048,577 bytes, and the shell allows files of 1,048,576") &&
                        Contains("ulimit -f"));
  CHECK(small.empty());
}

TEST_CASE("lock_directory: one that may only be read is refused")
{
  const ScratchFolder folder;
  const std::string path = folder / "closed";
  std::filesystem::create_directory(path);
  REQUIRE(chmod(path.c_str(), 0555) == 0);
  constexpr uid_t nobody = 65534;
  const uid_t before = geteuid();
  if (before == 0) REQUIRE(seteuid(nobody) == 0);  // the superuser may write everywhere
  const std::string told = refusal(path);
  if (before == 0) REQUIRE(seteuid(before) == 0);
  CHECK_THAT(told, Contains("cannot be used: the offload file of rank") && Contains("Permission denied") &&
                       Contains("Choose a directory that you may write to"));
}

TEST_CASE("measure_disk: reads and writes at the same time; the file is new afterwards")
{
  const ScratchFolder folder;
  BlockMemory memory;
  constexpr std::int64_t S = 1 << 20;
  BlockFile file(folder / "", 0, 8, S);
  const BlockBuffer coming = memory.buffer(S), going = memory.buffer(S);
  FaultyDisk disk;
  std::atomic<std::int64_t> read = 0, written = 0;
  // Once the file is filled, the first read and the first write wait for each other: they end only if both are under way.
  const auto once = [](bool together, std::size_t count) -> ssize_t {
    if (together) return static_cast<ssize_t>(count);
    errno = ETIMEDOUT;
    return -1;
  };
  disk.before_read = [&](std::size_t count, off_t) {
    read += static_cast<std::int64_t>(count);
    usleep(20000);
    return once(eventually([&] { return written > 8 * S; }), count);
  };
  disk.before_write = [&](std::size_t count, off_t) {
    written += static_cast<std::int64_t>(count);
    return once(written <= 8 * S || eventually([&] { return read > 0; }), count);
  };
  const double GBps = measure_disk(file, 8, coming.bytes(), going.bytes());
  CHECK(read == 5 * S);
  CHECK(written == (8 + 3) * S);
  CHECK(GBps > 0);
  CHECK(GBps < 1e-9 * 8 * S / (5 * 0.02));
  disk.before_read = disk.before_write = nullptr;
  REQUIRE_THROWS_WITH(file.read(0, coming.bytes()), Contains("never written"));
  CHECK(measure_disk(file, 1, coming.bytes(), going.bytes()) > 0);
}
