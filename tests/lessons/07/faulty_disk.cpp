#include "tests/lessons/07/faulty_disk.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <span>

#include <sys/wait.h>

#include "common/base/digest.hpp"
#include "common/base/error.hpp"

namespace rankwise {

namespace {

std::atomic<FaultyDisk*> faulty = nullptr;

std::byte content(int block, int version, std::size_t i)
{
  const auto place = static_cast<std::uint64_t>(i) * 7 + static_cast<std::uint64_t>(100 * block + version);
  return static_cast<std::byte>((place + 1) * 0x9E3779B97F4A7C15u >> 56);
}

/// The bytes moved when @p allowed bytes may be: direct I/O moves whole pages only.
std::size_t whole_pages(ssize_t allowed, std::size_t count)
{
  return std::min((static_cast<std::size_t>(allowed) + 4095) / 4096 * 4096, count);
}

}  // namespace

FaultyDisk::FaultyDisk()
{
  faulty = this;
}

FaultyDisk::~FaultyDisk()
{
  faulty = nullptr;
}

void fill(const BlockBuffer& buffer, int block, int version)
{
  const std::span<std::byte> bytes = buffer.bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = content(block, version, i);
}

bool holds(const BlockBuffer& buffer, int block, int version)
{
  const std::span<std::byte> bytes = buffer.bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != content(block, version, i)) return false;
  return true;
}

BlockBuffer BlockMemory::buffer(std::int64_t bytes, int block, int version)
{
  BlockBuffer filled = buffer(bytes);
  fill(filled, block, version);
  return filled;
}

std::int64_t blocks_of(const std::string& file, int rank)
{
  const auto number = [&](std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, &file[at], sizeof(value));
    return value;
  };
  constexpr std::size_t footer = 16 + 4 * 8;  // magic, rank, B, S, checksum
  const std::size_t end = file.size(), begin = end - footer;
  if (end < footer || file.compare(begin, 16, "Rankwise blocks\n") != 0) return 0;
  const std::uint64_t blocks = number(end - 24), block_bytes = number(end - 16), table = blocks * block_bytes;
  const auto hash = [&](std::size_t first, std::size_t count) {
    return fast_hash(std::as_bytes(std::span(file).subspan(first, count)));
  };
  if (number(end - 32) != static_cast<std::uint64_t>(rank) || end != table + 4096) return 0;  // few blocks
  if (number(end - 8) != hash(table, end - 8 - table)) return 0;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    const std::size_t checksum = table + 16 * b;
    const bool written = number(checksum + 8) == 1;
    if (number(checksum) != (written ? hash(b * block_bytes, block_bytes) : 0)) return 0;
  }
  return static_cast<std::int64_t>(blocks);
}

std::string path_of_unnamed(const std::string& folder)
{
  const std::string begins = std::filesystem::canonical(folder).string() + "/";
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(begins) && target.ends_with(" (deleted)")) return entry.path();
  }
  return "";
}

void flip_byte(const std::string& path, off_t offset)
{
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(offset);
  file.put(byte).flush();
  check(file.good(), "the test could not change " + path);
}

void copy_bytes(const std::string& path, off_t to, off_t from, std::int64_t count)
{
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes(static_cast<std::size_t>(count), ' ');
  file.seekg(from).read(bytes.data(), count);
  file.seekp(to).write(bytes.data(), count).flush();
  check(file.good(), "the test could not change " + path);
}

bool run_and_kill(const std::function<void()>& work)
{
  std::array<int, 2> ends{};
  check(pipe(ends.data()) == 0, "the test could not make a pipe");
  const pid_t child = fork();
  check(child >= 0, "the test could not start a process");
  if (child == 0) {
    close(ends[0]);
    try {
      work();
    } catch (...) {
      _exit(1);
    }
    if (write(ends[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  close(ends[1]);
  char byte = 0;
  const bool done = read(ends[0], &byte, 1) == 1;
  close(ends[0]);
  kill(child, SIGKILL);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && done;
}

}  // namespace rankwise

// ---- Wrapped functions ----------------------------------------------------------------------------------------------

// NOLINTBEGIN: these names are the linker's
extern "C" {

int __real_open(const char* path, int flags, mode_t mode);
int __real_fcntl(int file, int command, long argument);
int __real_posix_fallocate(int file, off_t offset, off_t length);
ssize_t __real_pread(int file, void* to, std::size_t count, off_t offset);
ssize_t __real_pwrite(int file, const void* from, std::size_t count, off_t offset);

int __wrap_open(const char* path, int flags, ...)
{
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  const rankwise::FaultyDisk* disk = rankwise::faulty;
  if (disk == nullptr || disk->knows_unnamed || (flags & O_TMPFILE) != O_TMPFILE)
    return __real_open(path, flags, mode);
  errno = EOPNOTSUPP;
  return -1;
}

int __wrap_fcntl(int file, int command, ...)
{
  std::va_list rest;
  va_start(rest, command);
  const long argument = command == F_SETFL ? va_arg(rest, int) : 0;
  va_end(rest);
  const rankwise::FaultyDisk* disk = rankwise::faulty;
  if (disk == nullptr || disk->knows_direct || (argument & O_DIRECT) == 0)
    return __real_fcntl(file, command, argument);
  errno = EINVAL;
  return -1;
}

int __wrap_posix_fallocate(int file, off_t offset, off_t length)
{
  const rankwise::FaultyDisk* disk = rankwise::faulty;
  if (disk != nullptr && disk->error_of_reserving != 0) return disk->error_of_reserving;
  return __real_posix_fallocate(file, offset, length);
}

ssize_t __wrap_pread(int file, void* to, std::size_t count, off_t offset)
{
  const rankwise::FaultyDisk* disk = rankwise::faulty;
  const ssize_t allowed = disk != nullptr && disk->before_read ? disk->before_read(count, offset) : -2;
  if (allowed == 0 || allowed == -1) return allowed;
  if (allowed < 0) return __real_pread(file, to, count, offset);
  return std::min(allowed, __real_pread(file, to, rankwise::whole_pages(allowed, count), offset));
}

ssize_t __wrap_pwrite(int file, const void* from, std::size_t count, off_t offset)
{
  const rankwise::FaultyDisk* disk = rankwise::faulty;
  const ssize_t allowed = disk != nullptr && disk->before_write ? disk->before_write(count, offset) : -2;
  if (allowed == 0 || allowed == -1) return allowed;
  if (allowed < 0) return __real_pwrite(file, from, count, offset);
  return std::min(allowed, __real_pwrite(file, from, rankwise::whole_pages(allowed, count), offset));
}

}  // extern "C"
// NOLINTEND
