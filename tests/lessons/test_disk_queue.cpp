// Blocks read ahead and written behind: order, waiting, buffers, and failures in the threads.

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/wait.h>

#include "common/error.hpp"
#include "lessons/07_offload/disk_queue.hpp"
#include "tests/lessons/faulty_disk.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;
using Catch::Contains;

namespace {

constexpr std::int64_t S = 2 * disk_alignment;

/// A file of some blocks on a disk that fails when it is asked to, and memory for them.
struct Blocks {
  explicit Blocks(std::int64_t blocks) : file(folder / "", 0, blocks, S) {}
  /// Writes all blocks, past the queue.
  void write_all(int version = 0)
  {
    for (int b = 0; b < file.blocks(); ++b) file.write(b, memory.buffer(S, b, version).bytes());
  }
  /// Whether a block has that content, read past the queue.
  bool has(int block, int content, int version)
  {
    const BlockBuffer buffer = memory.buffer(S);
    file.read(block, buffer.bytes());
    return holds(buffer, content, version);
  }

  ScratchFolder folder;
  BlockMemory memory;
  FaultyDisk disk;
  BlockFile file;
};

/// Makes transfers take a while. The code is right whether they do or not: what is wrong shows only if they do.
std::function<ssize_t(std::size_t, off_t)> slow(int milliseconds = 20)
{
  return [milliseconds](std::size_t count, off_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return static_cast<ssize_t>(count);
  };
}

/// Returns when @p holds does, or after ten seconds.
bool eventually(const std::atomic<bool>& holds)
{
  for (int i = 0; i < 10000 && !holds; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return holds;
}

}  // namespace

TEST_CASE("DiskQueue: blocks come back, whatever is waited for first")
{
  constexpr int B = 12;
  Blocks at(B);
  DiskQueue queue(at.file);
  std::vector<BlockBuffer> out, in;
  for (int b = 0; b < B; ++b) {
    out.push_back(at.memory.buffer(S, b));
    in.push_back(at.memory.buffer(S));
  }
  std::vector<DiskTransfer> writes, reads;
  for (std::size_t b = 0; b < B; ++b) {
    writes.push_back(queue.write(static_cast<std::int64_t>(b), out[b].bytes()));
    reads.push_back(queue.read(static_cast<std::int64_t>(b), in[b].bytes()));
  }
  for (std::size_t b = B; b-- > 0;) {
    reads[b].wait();
    REQUIRE(holds(in[b], static_cast<int>(b)));
    writes[b].wait();
  }
}

TEST_CASE("DiskQueue: a read has what the write before it wrote, though that is slow")
{
  Blocks at(3);
  at.write_all(0);
  at.disk.before_write = slow();
  DiskQueue queue(at.file);
  const BlockBuffer written = at.memory.buffer(S, 1, 7), other = at.memory.buffer(S), same = at.memory.buffer(S);
  DiskTransfer write = queue.write(1, written.bytes());
  DiskTransfer read_other = queue.read(2, other.bytes()), read_same = queue.read(1, same.bytes());
  read_other.wait();
  read_same.wait();
  CHECK(holds(other, 2, 0));
  CHECK(holds(same, 1, 7));
  write.wait();
}

TEST_CASE("DiskQueue: a read before a write has what was there, though the read is slow")
{
  Blocks at(3);
  at.write_all(0);
  at.disk.before_read = slow();
  DiskQueue queue(at.file);
  const BlockBuffer before = at.memory.buffer(S), written = at.memory.buffer(S, 1, 7);
  DiskTransfer read = queue.read(1, before.bytes()), write = queue.write(1, written.bytes());
  read.wait();
  write.wait();
  CHECK(holds(before, 1, 0));
  CHECK(at.has(1, 1, 7));
}

TEST_CASE("DiskQueue: reads and writes go on beside each other")
{
  Blocks at(2);
  at.write_all(0);
  std::atomic<bool> writing = false;
  at.disk.before_read = [&](std::size_t count, off_t) -> ssize_t {
    if (eventually(writing)) return static_cast<ssize_t>(count);
    errno = ETIMEDOUT;  // the write waits for this read
    return -1;
  };
  at.disk.before_write = [&](std::size_t count, off_t) {
    writing = true;
    return static_cast<ssize_t>(count);
  };
  DiskQueue queue(at.file);
  const BlockBuffer in = at.memory.buffer(S), out = at.memory.buffer(S, 1, 1);
  DiskTransfer read = queue.read(0, in.bytes()), write = queue.write(1, out.bytes());
  REQUIRE_NOTHROW(read.wait());
  write.wait();
}

TEST_CASE("DiskQueue: two buffers are enough to change all blocks of a file that is slow")
{
  constexpr int B = 9;
  Blocks at(B);
  at.write_all(0);
  at.disk.before_write = slow();
  at.disk.before_read = slow(5);
  DiskQueue queue(at.file);
  std::array<BlockBuffer, 2> buffers{at.memory.buffer(S), at.memory.buffer(S)};
  std::array<DiskTransfer, 2> reads, writes;
  const auto read_ahead = [&](int block) {
    const std::size_t k = static_cast<std::size_t>(block) % 2;
    writes[k].wait();  // without this the block is overwritten on its way to the disk
    reads[k] = queue.read(block, buffers[k].bytes());
  };
  read_ahead(0);
  for (int b = 0; b < B; ++b) {
    const std::size_t k = static_cast<std::size_t>(b) % 2;
    reads[k].wait();
    REQUIRE(holds(buffers[k], b, 0));
    if (b + 1 < B) read_ahead(b + 1);
    fill(buffers[k], b, 1);
    writes[k] = queue.write(b, buffers[k].bytes());
  }
  for (DiskTransfer& write : writes) write.wait();
  at.disk.before_read = nullptr;
  for (int b = 0; b < B; ++b) REQUIRE(at.has(b, b, 1));
}

TEST_CASE("DiskTransfer: a buffer is free when its write was waited for, not before")
{
  Blocks at(2);
  at.disk.before_write = slow(100);
  DiskQueue queue(at.file);
  const BlockBuffer buffer = at.memory.buffer(S, 0);
  DiskTransfer write = queue.write(0, buffer.bytes());
  write.wait();
  fill(buffer, 55);
  write = queue.write(1, buffer.bytes());
  write.wait();
  CHECK(at.has(0, 0, 0));
  CHECK(at.has(1, 55, 0));
}

TEST_CASE("DiskTransfer: can be handed on, and waiting twice does nothing")
{
  Blocks at(2);
  at.write_all();
  DiskQueue queue(at.file);
  const BlockBuffer buffer = at.memory.buffer(S);
  DiskTransfer first = queue.read(0, buffer.bytes());
  DiskTransfer moved = std::move(first);
  first.wait();  // NOLINT: nothing is left to wait for
  moved.wait();
  moved.wait();
  CHECK(holds(buffer, 0));
  moved = queue.read(1, buffer.bytes());
  moved.wait();
  CHECK(holds(buffer, 1));
}

TEST_CASE("DiskQueue: what fails in a thread is thrown where it is waited for, and nothing is moved after it")
{
  Blocks at(4);
  at.write_all(0);
  const BlockBuffer in = at.memory.buffer(S), out = at.memory.buffer(S, 0, 1);
  {
    DiskQueue queue(at.file);
    at.disk.before_write = [](std::size_t count, off_t offset) {
      errno = ENOSPC;
      return offset == 2 * S ? -1 : static_cast<ssize_t>(count);
    };
    DiskTransfer good = queue.write(1, out.bytes());
    good.wait();
    DiskTransfer bad = queue.write(2, out.bytes()), after = queue.write(3, out.bytes()),
                 read = queue.read(2, in.bytes());
    const auto what = Contains("block 2 of 4 (bytes 16,384 to 24,575) cannot be written: No space left on device");
    CHECK_THROWS_WITH(after.wait(), what);
    CHECK_THROWS_WITH(read.wait(), what);
    CHECK_THROWS_WITH(bad.wait(), what);
    DiskTransfer later = queue.read(0, in.bytes());
    CHECK_THROWS_WITH(later.wait(), what);
    CHECK(queue.writes().bytes == S);
    CHECK(queue.reads().bytes == 0);
  }
  CHECK(at.has(1, 0, 1));
  CHECK(at.has(3, 3, 0));

  DiskQueue queue(at.file);  // a new one begins anew
  flip_byte(path_of_unnamed(at.folder / ""), 3 * S);
  DiskTransfer read = queue.read(3, in.bytes());
  CHECK_THROWS_WITH(read.wait(), Contains("block 3 of 4") && Contains("is damaged"));
}

TEST_CASE("DiskQueue: an exception on its way out moves nothing more, and leaves no thread with a buffer")
{
  constexpr int B = 20;
  Blocks at(B);
  std::atomic<int> written = 0;
  std::atomic<bool> begun = false;
  at.disk.before_write = [&](std::size_t count, off_t) {
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++written;
    return static_cast<ssize_t>(count);
  };
  const auto fails = [&](bool with_read) {
    DiskQueue queue(at.file);
    std::vector<BlockBuffer> buffers;
    std::vector<DiskTransfer> kept;
    for (int b = 0; b < B; ++b) buffers.push_back(at.memory.buffer(S, b));
    for (int b = 0; b < B; ++b) kept.push_back(queue.write(b, buffers[static_cast<std::size_t>(b)].bytes()));
    if (with_read) kept.push_back(queue.read(B - 1, buffers[0].bytes()));  // it waits for a write
    eventually(begun);
    throw Error("something else");
  };
  for (const bool with_read : {false, true}) {
    written = 0;
    begun = false;
    REQUIRE_THROWS_WITH(fails(with_read), Contains("something else"));
    CHECK(written >= 1);
    CHECK(written < B / 2);
    CHECK(at.has(0, 0, 0));
  }

  DiskQueue queue(at.file);
  const BlockBuffer buffer = at.memory.buffer(S, 1);
  const auto gives_up = [&] {
    const DiskTransfer left = queue.write(1, buffer.bytes());
    throw Error("something else");
  };
  REQUIRE_THROWS_WITH(gives_up(), Contains("something else"));
  DiskTransfer late = queue.read(0, buffer.bytes());
  CHECK_THROWS_WITH(late.wait(), Contains("was given up"));
}

// What AddressSanitizer and ThreadSanitizer do not like is a process of threads that forks and starts threads.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("DiskTransfer: one that is never waited for ends the job, with its line")
{
  const ScratchFolder folder;
  const std::string said = folder / "said";
  const pid_t child = fork();
  if (child == 0) {
    const int file = creat(said.c_str(), 0600);
    dup2(file, STDERR_FILENO);
    BlockMemory memory;
    BlockFile blocks(folder / "", 0, 2, S);
    DiskQueue queue(blocks);
    const BlockBuffer buffer = memory.buffer(S, 1);
    {
      const DiskTransfer forgotten = queue.write(1, buffer.bytes());
    }
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == exit_failure);
  CHECK_THAT(read_file(said), Contains("test_disk_queue.cpp:") &&
                                  Contains("writing block 1, which was begun here, was never waited for"));
}
#endif

TEST_CASE("DiskQueue: counts what it moved, and how long that took")
{
  Blocks at(4);
  at.write_all(0);
  at.disk.before_read = slow(20);
  DiskQueue queue(at.file);
  queue.record();
  CHECK(queue.reads().GBps() == 0);
  const BlockBuffer in = at.memory.buffer(S), out = at.memory.buffer(S, 3);
  for (const int b : {0, 1, 2}) {
    DiskTransfer read = queue.read(b, in.bytes());
    read.wait();
  }
  DiskTransfer write = queue.write(3, out.bytes());
  write.wait();
  CHECK(queue.reads().bytes == 3 * S);
  CHECK(queue.writes().bytes == S);
  CHECK(queue.reads().busy_s >= 0.06);
  CHECK(queue.writes().busy_s > 0);
  CHECK(queue.reads().GBps() == Approx(3 * S * 1e-9 / queue.reads().busy_s));
  const std::vector<TraceEvent> events = queue.read_time().events();
  REQUIRE(events.size() == 3);
  CHECK(events[1].name == "reading block 1");
  CHECK(events[1].work == Work::io);
  REQUIRE(queue.write_time().events().size() == 1);
  CHECK(queue.write_time().events()[0].name == "writing block 3");
}
