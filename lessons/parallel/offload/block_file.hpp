#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/descriptor.hpp"
#include "common/memory/device.hpp"

/// @file
/// A file of equal blocks, the state that a rank stores on disk, and memory to read them into.

namespace rankwise {

/// Bytes. Block sizes are multiples of it and buffers are aligned to it, as direct I/O past the page cache
/// requires.
inline constexpr std::int64_t disk_alignment = 4096;

/// Bytes of one block, aligned to disk_alignment. The ledger counts them as staging, including the disk_alignment
/// bytes that alignment costs.
class BlockBuffer {
 public:
  /// An empty buffer.
  BlockBuffer() = default;
  /// @param memory  where it is allocated.
  /// @param bytes   of a block.
  /// @param type    of its elements.
  /// @param what    its name in messages.
  /// @throws Error  when the memory does not suffice.
  BlockBuffer(const DeviceMemory& memory, std::int64_t bytes, DType type, std::string_view what);

  /// (bytes); moving the buffer does not move this memory.
  std::span<std::byte> bytes() const;
  /// Tensor of the first @p elements elements.
  Tensor tensor(std::int64_t elements) const { return {bytes().data(), type_, {elements}}; }

 private:
  Buffer memory_;
  std::int64_t bytes_ = 0;
  DType type_ = DType::u8;
};

/// B blocks of S bytes in one file, which belongs to one rank.
///
///     offset   0          S          2 S             (B-1) S     B S
///              [ block 0 ][ block 1 ] ...           [ block B-1 ][ checksums ]
///     memory     c0         c1                         c(B-1)      only of a file that is kept, written by close()
///
/// The checksum of each block is held in memory from its write on, and compared at every read: a byte that changed
/// on the disk, or a block in the wrong place, is an Error. All space is reserved before the first write.
///
/// The file has no name (O_TMPFILE; on file systems without it, the file is unlinked right after it is created), so
/// nothing is left however the process ends. A kept file is called kept_name() and is for inspection. Nothing reads it
/// again; an entry of its table of checksums is XXH3-64 and 1, or 0 and 0 for a block that was never written.
///
/// Different threads may read and write different blocks at the same time, but not the same block.
///
/// @failure  Error names the file, the block and the cause: no space, a missing directory or file, a block that is
///           damaged or was never written, or the system's message. After an Error of write() the block counts as
///           never written.
/// @source   the checksum is XXH3-64 (fast_hash()).
class BlockFile {
 public:
  /// Creates a file; a kept one replaces an older one of the same name. The destructor closes it; unless it is kept,
  /// it no longer exists then.
  /// @param directory    exists.
  /// @param rank         of the job, for the file's name and for messages.
  /// @param blocks       B >= 1.
  /// @param block_bytes  S, a multiple of disk_alignment.
  /// @param keep         whether the file has a name and outlives the job.
  /// @throws Error       when the file cannot be created or space cannot be reserved.
  BlockFile(const std::string& directory, int rank, std::int64_t blocks, std::int64_t block_bytes,
            bool keep = false);
  /// Path of a rank's kept file.
  static std::string kept_name(const std::string& directory, int rank);

  /// B.
  std::int64_t blocks() const { return static_cast<std::int64_t>(checksums_.size()); }
  /// S.
  std::int64_t block_bytes() const { return block_bytes_; }
  /// True if reads and writes bypass the page cache (O_DIRECT), as they do if the file system allows it. If not,
  /// they may be served from the system's memory.
  bool direct() const { return direct_; }

  /// Writes a block. When this returns the system has the data; a power failure may still lose it.
  /// @param block  0 <= block < B.
  /// @param bytes  (S), aligned to disk_alignment.
  void write(std::int64_t block, std::span<const std::byte> bytes);
  /// Reads a block that was written, and verifies its checksum.
  /// @param[in]  block  0 <= block < B.
  /// @param[out] bytes  (S), aligned to disk_alignment; undefined after an Error.
  void read(std::int64_t block, std::span<std::byte> bytes);
  /// Marks all blocks as never written.
  void forget() { checksums_.assign(checksums_.size(), {}); }
  /// Ends the use of the file. A kept file is complete on the disk when this returns.
  void close();

 private:
  /// Checksum of a block, if it was written.
  struct Checksum {
    std::uint64_t value = 0;
    std::uint64_t written = 0;  // 1: the block was written
  };
  void reserve();
  bool go_direct() const;
  void write_checksums() const;
  void check_request(std::int64_t block, std::span<const std::byte> bytes) const;
  void check_there() const;
  std::string place_of(std::int64_t block) const;
  std::int64_t checksums_bytes() const;                                      // including the footer
  std::int64_t piece_bytes() const { return direct_ ? disk_alignment : 1; }  // transfers start at multiples of it

  std::string directory_, name_;  // the name is for messages: its path, or its rank and directory
  int rank_;
  std::int64_t block_bytes_;
  std::vector<Checksum> checksums_;  // by block
  bool keep_, direct_ = false;
  Descriptor file_{-1};
  std::uint64_t device_ = 0, inode_ = 0;  // the directory's
};

}  // namespace rankwise
