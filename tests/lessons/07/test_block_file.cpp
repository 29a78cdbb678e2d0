// Blocks on disk: they are read back unchanged, damage is reported with its block, and no file is left.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <sys/resource.h>

#include "common/base/error.hpp"
#include "lessons/parallel/offload/block_file.hpp"
#include "tests/catch.hpp"
#include "tests/fuzz.hpp"
#include "tests/lessons/07/faulty_disk.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

constexpr std::int64_t S = 3 * disk_alignment;

/// An empty directory to keep blocks in, and memory to read them into.
struct Place {
  Place() { std::filesystem::create_directory(directory); }
  /// Writes all blocks of a file.
  void write_all(BlockFile& file, int version = 0)
  {
    for (int b = 0; b < file.blocks(); ++b) file.write(b, memory.buffer(file.block_bytes(), b, version).bytes());
  }
  /// Whether all blocks are read back unchanged, the last one first.
  bool all_come_back(BlockFile& file, int version = 0)
  {
    const BlockBuffer buffer = memory.buffer(file.block_bytes());
    for (int b = static_cast<int>(file.blocks()); b-- > 0;) {
      file.read(b, buffer.bytes());
      if (!holds(buffer, b, version)) return false;
    }
    return true;
  }

  ScratchFolder folder;
  std::string directory = folder / "disk";
  BlockMemory memory;
};

/// Overwrites a file in place. A new file would be flushed to the disk at once by some file systems.
void overwrite(const std::string& path, const std::string& content)
{
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << content;
  std::filesystem::resize_file(path, content.size());
}

}  // namespace

TEST_CASE("BlockFile: what was written comes back, past the page cache or not")
{
  Place at;
  FaultyDisk disk;
  for (const bool direct : {true, false}) {
    disk.knows_direct = direct;
    for (const std::int64_t bytes : {disk_alignment, S, std::int64_t{1} << 20}) {
      BlockFile file(at.directory, 2, 5, bytes);
      CHECK((direct || !file.direct()));
      REQUIRE(file.blocks() == 5);
      REQUIRE(file.block_bytes() == bytes);
      for (const int version : {0, 1}) {
        at.write_all(file, version);
        REQUIRE(at.all_come_back(file, version));
      }
      file.write(3, at.memory.buffer(bytes, 77).bytes());
      const BlockBuffer buffer = at.memory.buffer(bytes);
      for (const int b : {2, 3, 4}) {
        file.read(b, buffer.bytes());
        CHECK(holds(buffer, b == 3 ? 77 : b, b == 3 ? 0 : 1));
      }
    }
  }
}

TEST_CASE("BlockFile: uses the page cache where the file system does not support direct I/O")
{
  Place at;
  FaultyDisk disk;
  SECTION("it says so at once")
  {
    disk.knows_direct = false;
  }
  SECTION("it says so at the first transfer")
  {
    disk.before_read = [first = true](std::size_t count, off_t) mutable -> ssize_t {
      errno = EINVAL;
      return std::exchange(first, false) ? -1 : static_cast<ssize_t>(count);
    };
  }
  BlockFile file(at.directory, 0, 3, S);
  CHECK_FALSE(file.direct());
  at.write_all(file);
  CHECK(at.all_come_back(file));
}

TEST_CASE("BlockFile: short or interrupted transfers are continued")
{
  Place at;
  FaultyDisk disk;
  disk.knows_direct = GENERATE(true, false);
  // Past the page cache what is moved begins with a whole page.
  const std::size_t least = disk.knows_direct ? 4096 : 1000, most = 5000;
  disk.before_read = disk.before_write = [=, call = 0](std::size_t count, off_t) mutable -> ssize_t {
    errno = EINTR;
    return ++call % 3 == 0 ? -1 : static_cast<ssize_t>(std::min(count, call % 2 == 0 ? least : most));
  };
  BlockFile file(at.directory, 0, 4, S);
  at.write_all(file);
  CHECK(at.all_come_back(file));
  disk.before_read = disk.before_write = nullptr;
  CHECK(at.all_come_back(file));
}

TEST_CASE("BlockFile: a byte that changed on the disk is noticed, and in which block")
{
  Place at;
  BlockFile file(at.directory, 6, 4, S);
  at.write_all(file);
  const std::string path = path_of_unnamed(at.directory);
  REQUIRE_FALSE(path.empty());
  flip_byte(path, 2 * S + 100);
  const BlockBuffer buffer = at.memory.buffer(S);
  for (const int b : {0, 1, 3}) REQUIRE_NOTHROW(file.read(b, buffer.bytes()));
  REQUIRE_THROWS_WITH(file.read(2, buffer.bytes()),
                      Contains("the offload file of rank 6 in " + at.directory) &&
                          Contains("block 2 of 4 (bytes 24,576 to 36,863) is damaged") && Contains("checksum"));
  flip_byte(path, 2 * S + 100);
  REQUIRE_NOTHROW(file.read(2, buffer.bytes()));
}

TEST_CASE("BlockFile: a block stored in the place of another is detected")
{
  Place at;
  BlockFile file(at.directory, 0, 3, S);
  at.write_all(file);
  copy_bytes(path_of_unnamed(at.directory), S, 0, S);
  const BlockBuffer buffer = at.memory.buffer(S);
  REQUIRE_THROWS_WITH(file.read(1, buffer.bytes()), Contains("block 1 of 3") && Contains("is damaged"));
  REQUIRE_NOTHROW(file.read(0, buffer.bytes()));
}

TEST_CASE("BlockFile: a block that was never written is not read")
{
  Place at;
  BlockFile file(at.directory, 0, 3, S);
  const BlockBuffer buffer = at.memory.buffer(S, 1);
  file.write(1, buffer.bytes());
  REQUIRE_NOTHROW(file.read(1, buffer.bytes()));
  REQUIRE_THROWS_WITH(file.read(2, buffer.bytes()), Contains("block 2 of 3") && Contains("never written"));
  file.forget();
  REQUIRE_THROWS_WITH(file.read(1, buffer.bytes()), Contains("block 1 of 3") && Contains("never written"));
}

TEST_CASE("BlockFile: a request that makes no sense is refused")
{
  Place at;
  REQUIRE_THROWS_WITH(BlockFile(at.folder / "nowhere", 0, 3, S),
                      Contains("nowhere") && Contains("No such file or directory"));

  BlockFile file(at.directory, 0, 3, S);
  const BlockBuffer buffer = at.memory.buffer(2 * S);
  const std::span<std::byte> bytes = buffer.bytes();
  REQUIRE_THROWS_WITH(file.write(3, bytes.first(S)), Contains("no block 3") && Contains("has 3 blocks"));
  REQUIRE_THROWS_WITH(file.read(-1, bytes.first(S)), Contains("no block -1"));
  REQUIRE_THROWS_WITH(file.write(1, bytes), Contains("the buffer has 24,576 bytes"));
  REQUIRE_THROWS_WITH(file.write(1, bytes.subspan(64, S)), Contains("not aligned to 4096 bytes"));
  file.close();
  REQUIRE_THROWS_WITH(file.write(1, bytes.first(S)), Contains("is closed"));
  REQUIRE_NOTHROW(file.close());
}

TEST_CASE("BlockFile: a full disk is noticed when the space is reserved")
{
  Place at;
  const bool keep = GENERATE(true, false);
  FaultyDisk disk;
  disk.error_of_reserving = ENOSPC;
  REQUIRE_THROWS_WITH(BlockFile(at.directory, 3, 1000, S, keep),
                      Contains("rank") && Contains("No space left on device") && Contains("are free") &&
                          Contains(keep ? "needs 12,304,384 bytes" : "needs 12,288,000 bytes"));
  disk.error_of_reserving = 0;
  REQUIRE_THROWS_WITH(BlockFile(at.directory, 3, 4096, std::int64_t{1} << 50, keep),
                      Contains("no space for 4096 blocks"));
  CHECK(files_in(at.directory) == 0);
}

TEST_CASE("BlockFile: a disk that fails is named with the block")
{
  Place at;
  FaultyDisk disk;
  BlockFile file(at.directory, 1, 3, S);
  at.write_all(file);
  const BlockBuffer buffer = at.memory.buffer(S, 0);
  const auto fails_with = [](int error) {
    return [error](std::size_t, off_t) -> ssize_t {
      errno = error;
      return -1;
    };
  };
  disk.before_read = fails_with(EIO);
  REQUIRE_THROWS_WITH(file.read(1, buffer.bytes()),
                      Contains("block 1 of 3") && Contains("cannot be read: Input/output error"));
  disk.before_read = [](std::size_t, off_t) -> ssize_t { return 0; };
  REQUIRE_THROWS_WITH(file.read(1, buffer.bytes()), Contains("only 0 of 12,288 bytes are there"));
  disk.before_read = nullptr;
  REQUIRE_NOTHROW(file.read(1, buffer.bytes()));

  disk.before_write = fails_with(ENOSPC);
  REQUIRE_THROWS_WITH(file.write(2, buffer.bytes()),
                      Contains("block 2 of 3") && Contains("cannot be written: No space left on device"));
  REQUIRE_THROWS_WITH(file.read(2, buffer.bytes()), Contains("never written"));
  REQUIRE_NOTHROW(file.read(1, buffer.bytes()));
}

TEST_CASE("BlockFile: a file may not be larger than the shell allows")
{
  Place at;
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const auto allow = [&](rlim_t bytes) {
    const struct rlimit allowed {
      bytes, limit.rlim_max
    };
    return setrlimit(RLIMIT_FSIZE, &allowed) == 0;
  };
  BlockFile file(at.directory, 0, 2, S);
  const BlockBuffer buffer = at.memory.buffer(S, 0);
  REQUIRE(allow(S + disk_alignment));
  std::string reserving, writing;
  try {
    const BlockFile second(at.directory, 0, 2, S);
  } catch (const Error& error) {
    reserving = error.what();
  }
  try {
    file.write(0, buffer.bytes());
    file.write(1, buffer.bytes());  // a page of it is written, then nothing
  } catch (const Error& error) {
    writing = error.what();
  }
  REQUIRE(allow(limit.rlim_cur));
  std::signal(SIGXFSZ, before);
  CHECK_THAT(reserving, Contains("File too large"));
  CHECK_THAT(writing, Contains("block 1 of 2") && Contains("File too large"));
}

TEST_CASE("BlockFile: a directory that is gone is noticed at the next transfer")
{
  Place at;
  BlockFile file(at.directory, 0, 3, S);
  at.write_all(file);
  const BlockBuffer buffer = at.memory.buffer(S, 0);
  std::filesystem::rename(at.directory, at.directory + ".old");
  const auto gone = Contains("the directory " + at.directory + " is gone");
  REQUIRE_THROWS_WITH(file.read(0, buffer.bytes()), gone && Contains("No such file or directory"));
  REQUIRE_THROWS_WITH(file.write(0, buffer.bytes()), gone);
  std::filesystem::create_directory(at.directory);
  REQUIRE_THROWS_WITH(file.write(0, buffer.bytes()), gone && Contains("another one has its name now"));
  std::filesystem::remove(at.directory);
  std::filesystem::rename(at.directory + ".old", at.directory);
  REQUIRE_NOTHROW(file.read(0, buffer.bytes()));
  std::filesystem::remove(at.directory);
  REQUIRE_THROWS_WITH(file.read(0, buffer.bytes()), gone);
}

TEST_CASE("BlockFile: has no name, and is gone when its process is killed")
{
  Place at;
  FaultyDisk disk;
  disk.knows_unnamed = GENERATE(true, false);
  {
    BlockFile file(at.directory, 0, 3, S);
    CHECK(files_in(at.directory) == 0);
    at.write_all(file);
    CHECK(files_in(at.directory) == 0);
    CHECK(at.all_come_back(file));
  }
  REQUIRE(run_and_kill([&] {
    auto* file = new BlockFile(at.directory, 0, 3, S);  // never deleted
    at.write_all(*file);
    check(at.all_come_back(*file), "they do not come back");
  }));
  CHECK(files_in(at.directory) == 0);
}

TEST_CASE("BlockFile: one that is kept has all blocks and their checksums when it was closed")
{
  Place at;
  const std::string path = BlockFile::kept_name(at.directory, 4), other = at.directory + "/other";
  make_file(other, "precious");
  std::filesystem::create_symlink(other, path);  // somebody wants it to be written to
  for (const int version : {0, 1}) {             // the second takes the place of the first
    BlockFile file(at.directory, 4, 5 - version, S, true);
    for (int b = 0; b < 3; ++b) file.write(b, at.memory.buffer(S, b, version).bytes());
    CHECK(blocks_of(read_file(path), 4) == 0);
    file.close();
    const std::string kept = read_file(path);
    CHECK(blocks_of(kept, 4) == 5 - version);
    CHECK(blocks_of(kept, 3) == 0);
    const BlockBuffer buffer = at.memory.buffer(S);
    for (std::size_t b = 0; b < 3; ++b) {
      std::memcpy(buffer.bytes().data(), &kept[b * S], S);
      CHECK(holds(buffer, static_cast<int>(b), version));
    }
  }
  CHECK(files_in(at.directory) == 2);
  CHECK(read_file(other) == "precious");
}

TEST_CASE("BlockFile: a removed kept file is an error, and one whose process was killed has no checksums")
{
  Place at;
  const std::string path = BlockFile::kept_name(at.directory, 0);
  BlockFile file(at.directory, 0, 3, S, true);
  at.write_all(file);
  std::filesystem::remove(path);
  const BlockBuffer buffer = at.memory.buffer(S);
  REQUIRE_THROWS_WITH(file.read(0, buffer.bytes()), Contains(path + " is gone"));
  REQUIRE_THROWS_WITH(file.close(), Contains(path + " is gone"));
  REQUIRE(run_and_kill([&] { at.write_all(*new BlockFile(at.directory, 0, 3, S, true)); }));
  CHECK(files_in(at.directory) == 1);
  CHECK(blocks_of(read_file(path), 0) == 0);
}

TEST_CASE("BlockFile: random damage is noticed")
{
  Place at;
  FaultyDisk disk;
  disk.knows_direct = false;  // each input would have to reach the disk
  BlockFile used(at.directory, 0, 3, disk_alignment);
  at.write_all(used);
  const std::string path = path_of_unnamed(at.directory), blocks = read_file(path);
  Draw draw(1);
  for (int i = 0; i < fuzz_inputs(500); ++i) {
    const std::string bytes = damaged(blocks, draw);
    overwrite(path, bytes);
    if (bytes.starts_with(blocks))
      CHECK(at.all_come_back(used));
    else
      CHECK_THROWS_AS(at.all_come_back(used), Error);
  }
}

TEST_CASE("BlockBuffer: aligned, and counted")
{
  BlockMemory memory;
  {
    const BlockBuffer first = memory.buffer(S), second = memory.buffer(std::int64_t{4} << 20);
    CHECK(first.bytes().size() == static_cast<std::size_t>(S));
    for (const BlockBuffer* buffer : {&first, &second})
      CHECK(reinterpret_cast<std::uintptr_t>(buffer->bytes().data()) % disk_alignment == 0);
    CHECK(memory.ledger.current(Tier::host)[Category::staging] == S + (4 << 20) + 2 * disk_alignment);
  }
  CHECK(memory.ledger.current(Tier::host).total() == 0);
}
