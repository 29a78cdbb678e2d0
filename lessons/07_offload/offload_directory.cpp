#include "lessons/07_offload/offload_directory.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <future>
#include <random>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/descriptor.hpp"
#include "common/program/time_ledger.hpp"

namespace rankwise {

namespace {

/// Refuses the directory.
[[noreturn]] void refuse(const std::string& path, const std::string& why, const std::string& remedy)
{
  throw UserError(fmt::format("--tier=disk:{} cannot be used: {}.", path, why), remedy);
}

void lock(int directory, const std::string& path)
{
  int code = 0;
  do code = flock(directory, LOCK_EX | LOCK_NB);
  while (code != 0 && errno == EINTR);
  if (code == 0) return;
  if (errno == EWOULDBLOCK)
    refuse(path, "another job uses it",
           "A directory serves one job at a time, so that no other job takes the space that it needs.\n"
           "Choose another directory, or wait for that job to end.");
  refuse(path, fmt::format("it cannot be locked ({})", system_error()),
         "The lock keeps two jobs apart. Choose a directory on a disk of this machine.");
}

void check_device_capacity(int directory, const std::string& path, const OffloadBytes& needs)
{
  struct statvfs files {};
  if (fstatvfs(directory, &files) != 0)
    refuse(path, system_error(), "Choose a directory on a disk of this machine.");
  const auto has = static_cast<std::int64_t>(files.f_bavail) * static_cast<std::int64_t>(files.f_frsize);
  if (needs.machine > has)
    refuse(path,
           fmt::format("it needs {} bytes for the ranks of this machine, and has {}", group_digits(needs.machine),
                       group_digits(has)),
           "All space is reserved before the first step. Choose a directory on a larger disk, more machines, a "
           "smaller\n"
           "model, or offload less.");
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(needs.file) > limit.rlim_cur)
    refuse(path,
           fmt::format("a rank's file needs {} bytes, and the shell allows files of {}", group_digits(needs.file),
                       group_digits(static_cast<std::int64_t>(limit.rlim_cur))),
           "Raise the limit with ulimit -f, use more ranks, or offload less.");
}

/// Creates a file as the run will do.
void check_writable(const std::string& path, int rank)
{
  try {
    const BlockFile file(path, rank, 1, disk_alignment);
  } catch (const Error& error) {
    refuse(path, error.what(), "Each rank stores a file there. Choose a directory that you may write to.");
  }
}

}  // namespace

OffloadDirectory::OffloadDirectory(const std::string& path, const OffloadBytes& needs, int rank, bool lowest)
    : path_(path), id_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))
{
  try {
    if (id_ < 0)
      refuse(path, errno == ENOTDIR ? "it is not a directory" : system_error(),
             "Each rank stores a file there. Choose a directory that exists, or create this one (mkdir).");
    if (lowest) lock(id_, path);
    check_device_capacity(id_, path, needs);
    check_writable(path, rank);
  } catch (...) {
    if (id_ >= 0) close(id_);
    throw;
  }
}

OffloadDirectory::~OffloadDirectory()
{
  close(id_);
}

double DiskBandwidth::seconds(std::int64_t read_bytes, std::int64_t written_bytes) const
{
  return static_cast<double>(read_bytes + written_bytes) / GBps * 1e-9;
}

DiskBandwidth measure_disk(BlockFile& file, std::int64_t blocks, std::span<std::byte> coming,
                           std::span<std::byte> going)
{
  check(blocks >= 1 && blocks <= file.blocks(), "a disk is measured with some of the blocks of a file");
  std::minstd_rand noise;
  for (std::byte& b : going) b = static_cast<std::byte>(noise() >> 8);
  for (std::int64_t block = 0; block < blocks; ++block) file.write(block, going);

  const std::int64_t written = 3 * blocks / 8;
  const Stopwatch clock;
  std::future<void> writing = std::async(std::launch::async, [&] {
    for (std::int64_t block = 0; block < written; ++block) file.write(block, going);
  });
  for (std::int64_t block = written; block < blocks; ++block) file.read(block, coming);
  writing.get();
  const double seconds = clock.seconds();
  file.forget();
  return {.GBps = static_cast<double>(blocks * file.block_bytes()) / seconds * 1e-9};
}

}  // namespace rankwise
