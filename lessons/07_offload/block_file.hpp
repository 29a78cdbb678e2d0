#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// @file
/// A file of equal blocks: the state that a rank stores on disk.

namespace rankwise {

/// Bytes. Block sizes are multiples of it and buffers are aligned to it, as direct I/O past the page cache
/// requires.
inline constexpr std::int64_t disk_alignment = 4096;

/// Options of a BlockFile.
struct BlockFileOptions {
  bool keep = false;   ///< the file has a name and outlives the job
  bool direct = true;  ///< bypass the page cache (O_DIRECT) if the file system allows it
};

/// B blocks of S bytes in one file, which belongs to one rank.
///
///     offset   0          S          2 S             (B-1) S     B S
///              [ block 0 ][ block 1 ] ...           [ block B-1 ][ checksums ]
///     memory     c0         c1                         c(B-1)      only of a file that is kept
///
/// The checksum of each block is held in memory from its write on, and compared at every read: a byte that changed
/// on the disk, or a block in the wrong place, is an Error. All space is reserved before the first write.
///
/// The file has no name (O_TMPFILE; on file systems without it, the file is unlinked right after it is created), so
/// nothing is left however the process ends. A kept file is called kept_name(), and close() appends the checksums.
///
/// Different threads may read and write different blocks at the same time, but not the same block.
///
/// @failure  Error names the file, the block and the cause: no space, a missing directory or file, a block that is
///           damaged or was never written, or the system's message. After an Error of write() the block counts as
///           never written.
/// @source   the checksum is XXH3-64 (fast_hash()).
class BlockFile {
 public:
  /// Creates a file; a kept one replaces an older one of the same name.
  /// @param directory    exists.
  /// @param rank         of the job, for the file's name and for messages.
  /// @param blocks       B >= 1.
  /// @param block_bytes  S, a multiple of disk_alignment.
  /// @param options      whether it is kept, and how it is written.
  /// @throws Error       when the file cannot be created or space cannot be reserved.
  BlockFile(const std::string& directory, int rank, std::int64_t blocks, std::int64_t block_bytes,
            const BlockFileOptions& options = {});
  /// Opens a file that was kept and closed, for reading.
  /// @throws Error  when it does not exist, was never closed, belongs to another rank, or its checksums are
  ///                damaged.
  static BlockFile open_kept(const std::string& directory, int rank);
  /// Closes the file; unless it is kept, it no longer exists then.
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  /// Path of a rank's kept file.
  static std::string kept_name(const std::string& directory, int rank);

  /// B.
  std::int64_t blocks() const { return static_cast<std::int64_t>(checksums_.size()); }
  /// S.
  std::int64_t block_bytes() const { return block_bytes_; }
  /// Whether reads and writes bypass the page cache. If not, they may be served from the system's memory.
  bool direct() const { return direct_; }
  /// Name for messages: its path, or its rank and directory.
  const std::string& name() const { return name_; }

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
  /// Ends the use of the file. A kept file is complete on the disk when this returns; without this call it cannot
  /// be opened again.
  void close();

 private:
  /// Checksum of a block, if it was written.
  struct Checksum {
    std::uint64_t value = 0;
    std::uint64_t written = 0;  // 1: the block was written
  };
  struct Footer;
  struct Kept {};

  BlockFile(const std::string& directory, int rank);        // no file yet
  BlockFile(const std::string& directory, int rank, Kept);  // open_kept()

  void reserve();
  bool go_direct() const;
  void read_checksums();
  void write_checksums() const;
  void check_request(std::int64_t block, std::span<const std::byte> bytes) const;
  void check_there() const;
  std::string place_of(std::int64_t block) const;
  std::int64_t checksums_bytes() const;                                      // including the footer
  std::int64_t piece_bytes() const { return direct_ ? disk_alignment : 1; }  // transfers start at multiples of it

  std::string directory_, name_;
  int rank_;
  std::int64_t block_bytes_ = 0;
  std::vector<Checksum> checksums_;  // by block
  bool keep_ = false, direct_ = false, writable_ = true;
  std::uint64_t device_ = 0, inode_ = 0;  // of the directory
  int id_ = -1;                           // of the open file
};

}  // namespace rankwise
