#pragma once

#include <cstdint>
#include <string>

/// @file
/// Host memory that the ranks may take.

namespace rankwise {

/// A limit on the memory of a process.
struct MemoryLimit {
  std::string of;          ///< its origin: "this machine", "the control group /sys/fs/cgroup/job" or "ulimit -v"
  std::int64_t bytes = 0;  ///< bytes left
  bool shared = true;      ///< true if the processes of the machine share them
};

/// The limit that leaves least to each of @p ranks processes of this machine, with the bytes of one of them: as it
/// was when this process first asked, before a run took memory itself, less up to 64 MiB for memory outside the
/// ledgers.
/// @source  MemAvailable of /proc/meminfo; the control groups of this process, version 1 and 2, without the pages of files,
///          which the system takes back; RLIMIT_AS and RLIMIT_DATA. scripts/lib/host_memory.py looks at the same.
MemoryLimit memory_for_each(int ranks);

/// The limit in words, as "this machine leaves 1,000 bytes to each of 2 ranks".
std::string text_of(const MemoryLimit& limit, int ranks);

}  // namespace rankwise
