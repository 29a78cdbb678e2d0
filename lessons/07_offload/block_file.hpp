#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// @file
/// Blocks of equal size in a file: what a rank keeps on disk.

namespace rankwise {

/// Bytes. Blocks are multiples of it and their buffers aligned to it, so that they can go past the page cache.
inline constexpr std::int64_t disk_alignment = 4096;

/// How a BlockFile is made.
struct BlockFileOptions {
  bool keep = false;   ///< the file has a name, and stays
  bool direct = true;  ///< past the page cache (O_DIRECT), where the file system allows it
};

/// B blocks of S bytes in one file, which belongs to one rank.
///
///     offset   0          S          2 S             (B-1) S     B S
///              [ block 0 ][ block 1 ] ...           [ block B-1 ][ checksums ]
///     memory     c0         c1                         c(B-1)      only of a file that is kept
///
/// The checksum of each block is kept in memory when it is written, and compared at every read: a byte that changed on the
/// disk, or a block that is in the wrong place, is an Error. All space is reserved before the first write.
///
/// The file has no name from the moment it is opened (O_TMPFILE; where the file system does not know that, it is unlinked
/// in the next instruction): however the process ends, nothing is left. One that is kept is called kept_name(), and
/// close() writes the checksums behind its blocks.
///
/// Different blocks may be read and written by different threads at the same time; one block by one thread at a time.
///
/// @failure  Error names the file, the block, and what was wrong: no space, a directory or file that is gone, a block that
///           was damaged or never written, or what the system says. After an Error of write() the block counts as never
///           written.
/// @source   the checksum is XXH3-64 (fast_hash()).
class BlockFile {
 public:
  /// A new file; a kept one takes the place of an older one.
  /// @param directory    where; it exists.
  /// @param rank         of the job, for the file's name and for messages.
  /// @param blocks       B >= 1.
  /// @param block_bytes  S, a multiple of disk_alignment.
  /// @param options      whether it is kept, and how it is written.
  /// @throws Error       when it cannot be made, or has no room.
  BlockFile(const std::string& directory, int rank, std::int64_t blocks, std::int64_t block_bytes,
            const BlockFileOptions& options = {});
  /// A file that was kept and closed, to be read.
  /// @throws Error  when it is not there, was never closed, belongs to another rank, or its checksums are damaged.
  static BlockFile open_kept(const std::string& directory, int rank);
  /// The file is gone with this, unless it is kept.
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  /// The path of the file of a rank that is kept.
  static std::string kept_name(const std::string& directory, int rank);

  /// B.
  std::int64_t blocks() const { return static_cast<std::int64_t>(checksums_.size()); }
  /// S.
  std::int64_t block_bytes() const { return block_bytes_; }
  /// Whether it goes past the page cache. If not, the system's memory may stand for the disk.
  bool direct() const { return direct_; }
  /// What messages call it: its path, or whose it is and where.
  const std::string& name() const { return name_; }

  /// Writes a block. When this returns the system has it; after a power failure it may be lost.
  /// @param block  0 <= block < B.
  /// @param bytes  (S), aligned to disk_alignment.
  void write(std::int64_t block, std::span<const std::byte> bytes);
  /// Reads a block that was written, and compares its checksum.
  /// @param[in]  block  0 <= block < B.
  /// @param[out] bytes  (S), aligned to disk_alignment; of undefined content after an Error.
  void read(std::int64_t block, std::span<std::byte> bytes);
  /// From now on all blocks count as never written.
  void forget() { checksums_.assign(checksums_.size(), {}); }
  /// Ends the use of the file. A kept one is complete when this returns, down to the disk; without this call it can not be
  /// opened again.
  void close();

 private:
  /// What is known of a block.
  struct Checksum {
    std::uint64_t value = 0;
    std::uint64_t written = 0;  // 1: value is that of the block
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
  std::int64_t checksums_bytes() const;                                      // with the footer
  std::int64_t piece_bytes() const { return direct_ ? disk_alignment : 1; }  // what is moved begins at a multiple

  std::string directory_, name_;
  int rank_;
  std::int64_t block_bytes_ = 0;
  std::vector<Checksum> checksums_;  // by block
  bool keep_ = false, direct_ = false, writable_ = true;
  std::uint64_t device_ = 0, inode_ = 0;  // of the directory
  int id_ = -1;                           // of the open file
};

}  // namespace rankwise
