// Transfers of blocks over the link to a disk: their order, waiting, buffers, and failures in the threads.

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/wait.h>

#include "common/base/error.hpp"
#include "lessons/parallel/offload/block_file.hpp"
#include "lessons/parallel/offload/transfer_queue.hpp"
#include "tests/catch.hpp"
#include "tests/eventually.hpp"
#include "tests/lessons/07/faulty_disk.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

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

/// A link to the blocks of a file.
struct FileLink {
  explicit FileLink(BlockFile& of) : file(of) {}

  Pending read(std::int64_t block, std::span<std::byte> to, SourceLocation where = SourceLocation::current())
  {
    return queue.fetch(
        block, [this, block, to] { file.read(block, to); }, where);
  }
  Pending write(std::int64_t block, std::span<const std::byte> from,
                SourceLocation where = SourceLocation::current())
  {
    return queue.store(
        block, [this, block, from] { file.write(block, from); }, where);
  }

  BlockFile& file;
  TimeLedger time;  // of the rank
  TransferQueue queue{time};
};

/// Makes transfers take a while. The code is right whether they do or not: what is wrong shows only if they do.
std::function<ssize_t(std::size_t, off_t)> slow(int milliseconds = 20)
{
  return [milliseconds](std::size_t count, off_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return static_cast<ssize_t>(count);
  };
}

/// Opens a gate at the end of its scope.
struct OpensAtEnd {
  std::atomic<bool>& gate;
  ~OpensAtEnd() { gate = true; }
};

}  // namespace

TEST_CASE("TransferQueue: blocks are read back right, in any order of waits")
{
  constexpr int B = 12;
  Blocks at(B);
  FileLink link(at.file);
  std::vector<BlockBuffer> out, in;
  for (int b = 0; b < B; ++b) {
    out.push_back(at.memory.buffer(S, b));
    in.push_back(at.memory.buffer(S));
  }
  std::vector<Pending> writes, reads;
  for (std::size_t b = 0; b < B; ++b) {
    writes.push_back(link.write(static_cast<std::int64_t>(b), out[b].bytes()));
    reads.push_back(link.read(static_cast<std::int64_t>(b), in[b].bytes()));
  }
  for (std::size_t b = B; b-- > 0;) {
    reads[b].wait();
    REQUIRE(holds(in[b], static_cast<int>(b)));
    writes[b].wait();
  }
}

TEST_CASE("TransferQueue: a read has what the write before it wrote, though that is slow")
{
  Blocks at(3);
  at.write_all(0);
  at.disk.before_write = slow();
  FileLink link(at.file);
  const BlockBuffer written = at.memory.buffer(S, 1, 7), other = at.memory.buffer(S), same = at.memory.buffer(S);
  Pending write = link.write(1, written.bytes());
  Pending read_other = link.read(2, other.bytes()), read_same = link.read(1, same.bytes());
  read_other.wait();
  read_same.wait();
  CHECK(holds(other, 2, 0));
  CHECK(holds(same, 1, 7));
  write.wait();
}

TEST_CASE("TransferQueue: a read before a write has what was there, though the read is slow")
{
  Blocks at(3);
  at.write_all(0);
  at.disk.before_read = slow();
  FileLink link(at.file);
  const BlockBuffer before = at.memory.buffer(S), written = at.memory.buffer(S, 1, 7);
  Pending read = link.read(1, before.bytes()), write = link.write(1, written.bytes());
  read.wait();
  write.wait();
  CHECK(holds(before, 1, 0));
  CHECK(at.has(1, 1, 7));
}

TEST_CASE("TransferQueue: reads and writes run concurrently")
{
  Blocks at(2);
  at.write_all(0);
  std::atomic<bool> writing = false;
  at.disk.before_read = [&](std::size_t count, off_t) -> ssize_t {
    if (eventually([&] { return writing.load(); })) return static_cast<ssize_t>(count);
    errno = ETIMEDOUT;  // the write waits for this read
    return -1;
  };
  at.disk.before_write = [&](std::size_t count, off_t) {
    writing = true;
    return static_cast<ssize_t>(count);
  };
  FileLink link(at.file);
  const BlockBuffer in = at.memory.buffer(S), out = at.memory.buffer(S, 1, 1);
  Pending read = link.read(0, in.bytes()), write = link.write(1, out.bytes());
  REQUIRE_NOTHROW(read.wait());
  write.wait();
}

TEST_CASE("TransferQueue: two buffers are enough to change all blocks of a file that is slow")
{
  constexpr int B = 9;
  Blocks at(B);
  at.write_all(0);
  at.disk.before_write = slow();
  at.disk.before_read = slow(5);
  FileLink link(at.file);
  std::array<BlockBuffer, 2> buffers{at.memory.buffer(S), at.memory.buffer(S)};
  std::array<Pending, 2> reads, writes;
  const auto read_ahead = [&](int block) {
    const std::size_t k = static_cast<std::size_t>(block) % 2;
    writes[k].wait();  // without this the block is overwritten on its way to the disk
    reads[k] = link.read(block, buffers[k].bytes());
  };
  read_ahead(0);
  for (int b = 0; b < B; ++b) {
    const std::size_t k = static_cast<std::size_t>(b) % 2;
    reads[k].wait();
    REQUIRE(holds(buffers[k], b, 0));
    if (b + 1 < B) read_ahead(b + 1);
    fill(buffers[k], b, 1);
    writes[k] = link.write(b, buffers[k].bytes());
  }
  for (Pending& write : writes) write.wait();
  at.disk.before_read = nullptr;
  for (int b = 0; b < B; ++b) REQUIRE(at.has(b, b, 1));
}

TEST_CASE("Pending: a buffer is free when its write was waited for, not before")
{
  Blocks at(2);
  at.disk.before_write = slow(100);
  FileLink link(at.file);
  const BlockBuffer buffer = at.memory.buffer(S, 0);
  Pending write = link.write(0, buffer.bytes());
  write.wait();
  fill(buffer, 55);
  write = link.write(1, buffer.bytes());
  write.wait();
  CHECK(at.has(0, 0, 0));
  CHECK(at.has(1, 55, 0));
}

TEST_CASE("Pending: can be handed on, and waiting twice does nothing")
{
  Blocks at(2);
  at.write_all();
  FileLink link(at.file);
  const BlockBuffer buffer = at.memory.buffer(S);
  Pending first = link.read(0, buffer.bytes());
  Pending moved = std::move(first);
  first.wait();  // NOLINT: nothing is left to wait for
  moved.wait();
  moved.wait();
  CHECK(holds(buffer, 0));
  moved = link.read(1, buffer.bytes());
  moved.wait();
  CHECK(holds(buffer, 1));
}

TEST_CASE("TransferQueue: a failure in a thread is thrown by wait(), and no later transfer runs")
{
  Blocks at(4);
  at.write_all(0);
  const BlockBuffer in = at.memory.buffer(S), out = at.memory.buffer(S, 0, 1);
  {
    FileLink link(at.file);
    at.disk.before_write = [](std::size_t count, off_t offset) {
      errno = ENOSPC;
      return offset == 2 * S ? -1 : static_cast<ssize_t>(count);
    };
    Pending good = link.write(1, out.bytes());
    good.wait();
    Pending bad = link.write(2, out.bytes()), after = link.write(3, out.bytes()), read = link.read(2, in.bytes());
    const auto what = Contains("block 2 of 4 (bytes 16,384 to 24,575) cannot be written: No space left on device");
    CHECK_THROWS_WITH(after.wait(), what);
    CHECK_THROWS_WITH(read.wait(), what);
    CHECK_THROWS_WITH(bad.wait(), what);
    Pending later = link.read(0, in.bytes());
    CHECK_THROWS_WITH(later.wait(), what);
  }
  CHECK(at.has(1, 0, 1));
  CHECK(at.has(3, 3, 0));

  FileLink link(at.file);  // a new one begins anew
  flip_byte(path_of_unnamed(at.folder / ""), 3 * S);
  Pending read = link.read(3, in.bytes());
  CHECK_THROWS_WITH(read.wait(), Contains("block 3 of 4") && Contains("is damaged"));
}

TEST_CASE("TransferQueue: after an exception no transfer starts, and no thread uses a buffer")
{
  constexpr int B = 20;
  Blocks at(B);
  std::atomic<int> written = 0;
  std::atomic<bool> begun = false, gate = false;
  at.disk.before_write = [&](std::size_t count, off_t) {
    begun = true;
    eventually([&] { return gate.load(); });
    ++written;
    return static_cast<ssize_t>(count);
  };
  const auto fails = [&](bool with_read) {
    FileLink link(at.file);
    std::vector<BlockBuffer> buffers;
    std::vector<Pending> kept;
    // On its way out the exception first leaves a transfer that is done, which gives up the link; then the first write may end.
    const OpensAtEnd opens{gate};
    const Pending done = link.queue.fetch(B, [] {});
    for (int b = 0; b < B; ++b) buffers.push_back(at.memory.buffer(S, b));
    for (int b = 0; b < B; ++b) kept.push_back(link.write(b, buffers[static_cast<std::size_t>(b)].bytes()));
    if (with_read) kept.push_back(link.read(B - 1, buffers[0].bytes()));  // it waits for a write
    eventually([&] { return begun.load(); });
    throw Error("something else");
  };
  for (const bool with_read : {false, true}) {
    written = 0;
    begun = gate = false;
    REQUIRE_THROWS_WITH(fails(with_read), Contains("something else"));
    CHECK(written == 1);
    CHECK(at.has(0, 0, 0));
  }

  FileLink link(at.file);
  const BlockBuffer buffer = at.memory.buffer(S, 1);
  const auto gives_up = [&] {
    const Pending left = link.write(1, buffer.bytes());
    throw Error("something else");
  };
  REQUIRE_THROWS_WITH(gives_up(), Contains("something else"));
  Pending late = link.read(0, buffer.bytes());
  CHECK_THROWS_WITH(late.wait(), Contains("was abandoned"));
}

// AddressSanitizer and ThreadSanitizer do not support a process with threads that forks and starts threads.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("Pending: one that is never waited for ends the job, with its line")
{
  const ScratchFolder folder;
  const std::string said = folder / "said";
  const pid_t child = fork();
  if (child == 0) {
    const int file = creat(said.c_str(), 0600);
    dup2(file, STDERR_FILENO);
    BlockMemory memory;
    BlockFile blocks(folder / "", 0, 2, S);
    FileLink link(blocks);
    const BlockBuffer buffer = memory.buffer(S, 1);
    {
      const Pending forgotten = link.write(1, buffer.bytes());
    }
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == exit_failure);
  CHECK_THAT(read_file(said), Contains("test_transfer_queue.cpp:") &&
                                  Contains("storing block 1, which was begun here, was never waited for"));
}
#endif

TEST_CASE("TransferQueue: each direction keeps the order of the calls")
{
  TimeLedger time;
  TransferQueue queue(time);
  std::mutex mutex;
  std::vector<int> in, out;
  const auto note = [&](std::vector<int>& order, int block) {
    return [&, block] {
      const std::scoped_lock lock(mutex);
      order.push_back(block);
    };
  };
  std::vector<Pending> transfers;
  const std::vector<int> fetched{3, 1, 4, 1, 5}, stored{2, 7, 1, 8, 2};
  for (std::size_t i = 0; i < fetched.size(); ++i) {
    transfers.push_back(queue.fetch(fetched[i], note(in, fetched[i])));
    transfers.push_back(queue.store(stored[i], note(out, stored[i])));
  }
  for (Pending& transfer : transfers) transfer.wait();
  CHECK(in == fetched);
  CHECK(out == stored);
}

TEST_CASE("TransferQueue: a transfer is over when its move has returned, and what it left is seen")
{
  TimeLedger time;
  TransferQueue queue(time);
  int value = 0;  // no atomic: the wait is what orders the threads
  Pending fetch = queue.fetch(0, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    value = 1;
  });
  fetch.wait();
  CHECK(value == 1);
  value = 2;
  Pending store = queue.store(0, [&] { value *= 21; });
  store.wait();
  CHECK(value == 42);
}

TEST_CASE("TransferQueue: what its threads do is shown as hidden, by block")
{
  Blocks at(4);
  at.write_all(0);
  at.disk.before_read = slow(20);
  FileLink link(at.file);
  const BlockBuffer in = at.memory.buffer(S), out = at.memory.buffer(S, 3);
  const auto read = [&](int block) {
    Pending transfer = link.read(block, in.bytes());
    transfer.wait();
  };
  read(3);
  link.time.record();  // what was before is no event
  for (const int block : {0, 1, 2}) read(block);
  Pending write = link.write(3, out.bytes());
  write.wait();
  const std::vector<TraceEvent> events = link.time.events();
  REQUIRE(events.size() == 4);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(events[i].name == "fetching block " + std::to_string(i));
    CHECK(events[i].work == Work::fetching);
    CHECK(events[i].duration_ns >= 20'000'000);
  }
  CHECK(events[3].name == "storing block 3");
  CHECK(events[3].work == Work::storing);
  CHECK(link.time.seconds(Work::fetching) + link.time.seconds(Work::storing) == 0);
}
