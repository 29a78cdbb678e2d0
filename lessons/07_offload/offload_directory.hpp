#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lessons/07_offload/block_file.hpp"

/// @file
/// The directory of `--tier=disk:DIR`: its checks, its lock, and the bandwidth of its disk.

namespace rankwise {

/// Bytes that a run will store in the directory.
struct OffloadBytes {
  std::int64_t file = 0;     ///< file of this rank
  std::int64_t machine = 0;  ///< files of all ranks on this machine
};

/// A directory that this job offloads to, locked against other jobs while this object lives. Each rank constructs
/// one before the first message; the lowest rank of each machine holds the lock, which ends with its process.
/// Nothing is left in the directory.
///
/// The directory is on a local disk of each machine, not on one that machines share.
class OffloadDirectory {
 public:
  /// Checks that the directory exists, is not used by another job, has enough space, and lets this rank create a
  /// file.
  /// @param path      as the user gave it after "disk:".
  /// @param needs     bytes to be stored.
  /// @param rank      of the job.
  /// @param lowest    whether it is the lowest rank of its machine (rank_on_machine() == 0).
  /// @throws UserError  with the request, the reason and a remedy.
  OffloadDirectory(const std::string& path, const OffloadBytes& needs, int rank, bool lowest);
  /// Releases the lock.
  ~OffloadDirectory();
  OffloadDirectory(const OffloadDirectory&) = delete;
  OffloadDirectory& operator=(const OffloadDirectory&) = delete;

  /// As the user gave it.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int id_ = -1;  // of the directory
};

/// Bandwidth of a disk while nothing is computed.
struct DiskBandwidth {
  double GBps = 0;  ///< 10^9 bytes per second and rank, reads plus writes
  /// Seconds to read and to write these bytes at the same time.
  double seconds(std::int64_t read_bytes, std::int64_t written_bytes) const;
};

/// Measures the disk with the file that the run will use. All blocks are written once without timing, since the
/// first write to reserved space takes longer. Then, timed, one thread writes 3/8 of them again while another one
/// reads the rest, which is about the mix of a step. No block counts as written afterwards. Ranks that share a disk
/// share its bandwidth, so all of them measure at the same time, after a barrier.
/// @param file    a new one.
/// @param blocks  number of blocks to use, 1 .. B.
/// @param coming  (S), aligned to disk_alignment, to read into.
/// @param going   (S), aligned likewise, to write from; filled with incompressible data.
/// @throws Error  as the file does.
DiskBandwidth measure_disk(BlockFile& file, std::int64_t blocks, std::span<std::byte> coming,
                           std::span<std::byte> going);

}  // namespace rankwise
