#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lessons/07_offload/block_file.hpp"

/// @file
/// The directory of `--tier=disk:DIR`: whether it will do, whose it is, and how fast its disk is.

namespace rankwise {

/// Bytes that are going to lie in the directory.
struct OffloadBytes {
  std::int64_t file = 0;     ///< of this rank
  std::int64_t machine = 0;  ///< of all ranks of this machine together
};

/// A directory that this job offloads to, and no other one while this lives. Each rank makes one before the first message;
/// the lowest rank of each machine holds the lock, which goes with its process. Nothing is left in the directory.
///
/// The directory lies on a disk of each machine, not on one that machines share.
class OffloadDirectory {
 public:
  /// Checks that the directory exists, is no other job's, has room, and lets this rank make a file.
  /// @param path      as the user gave it, behind "disk:".
  /// @param needs     bytes.
  /// @param rank      of the job.
  /// @param lowest    whether it is the lowest rank of its machine (rank_on_machine() == 0).
  /// @throws UserError  what was asked, why it cannot be, and what to do.
  OffloadDirectory(const std::string& path, const OffloadBytes& needs, int rank, bool lowest);
  /// The directory is free again.
  ~OffloadDirectory();
  OffloadDirectory(const OffloadDirectory&) = delete;
  OffloadDirectory& operator=(const OffloadDirectory&) = delete;

  /// As the user gave it.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int id_ = -1;  // of the directory
};

/// What a disk does by itself, with nothing to compute.
struct DiskBandwidth {
  double GBps = 0;  ///< 10^9 bytes a second, read and written together, by one rank
  /// How long it takes to read and to write so many bytes, at the same time.
  double seconds(std::int64_t read_bytes, std::int64_t written_bytes) const;
};

/// Measures the disk with the file that the run is going to use, before it is used. Writes blocks (the first write of a
/// block that was only reserved takes longer); then, on the clock, writes 3/8 of them again on one thread while another
/// one reads the others, which is about what a step does. No block counts as written afterwards.
/// Ranks that share a disk share its bandwidth: all of them measure at the same time, behind a barrier.
/// @param file    a new one.
/// @param blocks  how many, 1 .. B.
/// @param coming  (S), aligned to disk_alignment, to read to.
/// @param going   (S) as above, to write from; overwritten with what no disk can compress.
/// @throws Error  as the file does.
DiskBandwidth measure_disk(BlockFile& file, std::int64_t blocks, std::span<std::byte> coming,
                           std::span<std::byte> going);

}  // namespace rankwise
