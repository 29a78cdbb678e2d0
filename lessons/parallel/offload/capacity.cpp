#include "lessons/parallel/offload/capacity.hpp"

#include <cerrno>
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
#include "common/memory/host_memory.hpp"
#include "common/program/session.hpp"
#include "common/program/time_ledger.hpp"
#include "lessons/parallel/offload/offload_costs.hpp"

namespace rankwise {

// ---- Host -----------------------------------------------------------------------------------------------------------

void check_host_capacity(const CategoryBytes& planned, std::int64_t device, int ranks, const std::string& remedy)
{
  const MemoryLimit limit = memory_for_each(ranks);
  if (planned.total() + device <= limit.bytes) return;
  const std::string with =
      device > 0 ? fmt::format(" and {} for the device, which is the same memory", group_digits(device)) : "";
  throw UserError(fmt::format("this run needs {} bytes of host memory per rank{}; {}.",
                              group_digits(planned.total()), with, text_of(limit, ranks)),
                  planned.table() + "\n" + remedy);
}

// ---- Disk -----------------------------------------------------------------------------------------------------------

namespace {

/// Refuses the directory.
[[noreturn]] void refuse(const std::string& path, const std::string& why, const std::string& remedy)
{
  throw UserError(fmt::format("--tier=disk:{} cannot be used: {}.", path, why), remedy);
}

Descriptor open_directory(const std::string& path)
{
  Descriptor directory(path, O_RDONLY | O_DIRECTORY);
  if (!directory.good())
    refuse(path, errno == ENOTDIR ? "it is not a directory" : system_error(),
           "Each rank stores a file there. Choose a directory that exists, or create this one (mkdir).");
  return directory;
}

void lock_or_refuse(const Descriptor& directory, const std::string& path)
{
  int code = 0;
  do code = flock(directory.id(), LOCK_EX | LOCK_NB);
  while (code != 0 && errno == EINTR);
  if (code == 0) return;
  if (errno == EWOULDBLOCK)
    refuse(path, "another job uses it",
           "A directory serves one job at a time, so that no other job takes the space that it needs.\n"
           "Choose another directory, or wait for that job to end.");
  refuse(path, fmt::format("it cannot be locked ({})", system_error()),
         "The lock keeps two jobs apart. Choose a directory on a disk of this machine.");
}

void check_disk_capacity(const Descriptor& directory, const std::string& path, std::int64_t file_bytes,
                         int files_here)
{
  struct statvfs files {};
  if (fstatvfs(directory.id(), &files) != 0)
    refuse(path, system_error(), "Choose a directory on a disk of this machine.");
  const std::int64_t needs = files_here * file_bytes;
  const auto has = static_cast<std::int64_t>(files.f_bavail) * static_cast<std::int64_t>(files.f_frsize);
  if (needs > has)
    refuse(path,
           fmt::format("it needs {} bytes for the ranks of this machine, and has {}", group_digits(needs),
                       group_digits(has)),
           "All space is reserved before the first step. Choose a directory on a larger disk, more machines, a "
           "smaller\n"
           "model, or offload less.");
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(file_bytes) > limit.rlim_cur)
    refuse(path,
           fmt::format("a rank's file needs {} bytes, and the shell allows files of {}", group_digits(file_bytes),
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

Descriptor lock_directory(const std::string& path, std::int64_t file_bytes, int rank, RankOf here)
{
  Descriptor directory = open_directory(path);
  if (here.rank == 0) lock_or_refuse(directory, path);
  check_disk_capacity(directory, path, file_bytes, here.ranks);
  check_writable(path, rank);
  return directory;
}

double measure_disk(BlockFile& file, std::int64_t blocks, std::span<std::byte> coming, std::span<std::byte> going)
{
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
  return static_cast<double>(blocks * file.block_bytes()) / seconds * 1e-9;
}

// ---- Both, before a run ---------------------------------------------------------------------------------------------

void prepare(const ZeroOffloadOptions& options, const TierBytes& most, RankOf rank)
{
  const std::int64_t file = in_tier(Tier::disk, most).total();
  if (options.dry_run) {
    if (file > 0) open_directory(options.offload.directory());
    return;
  }
  const bool one_memory = options.device == DeviceKind::cpu;
  check_host_capacity(in_tier(Tier::host, most), one_memory ? in_tier(Tier::device, most).total() : 0,
                      ranks_on_machine(), "Use more machines, a smaller model, or --tier=disk:DIR.");
  if (file > 0)
    options.directory = std::make_shared<Descriptor>(
        lock_directory(options.offload.directory(), file, rank.rank, {rank_on_machine(), ranks_on_machine()}));
}

}  // namespace rankwise
