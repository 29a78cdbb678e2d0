#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <unistd.h>

#include <sys/types.h>

#include "common/memory/device.hpp"
#include "lessons/parallel/offload/block_file.hpp"

/// @file
/// For tests of what is kept on disk: a disk that fails when it is asked to, and blocks whose content is known.

namespace rankwise {

/// While it lives, the program's disk calls go through it. The linker wraps them (--wrap); see
/// tests/CMakeLists.txt.
struct FaultyDisk {
  FaultyDisk();
  ~FaultyDisk();
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  /// Called before @p count bytes are read at @p offset. Says how many are: fewer for a short transfer, 0 for the end of the
  /// file, -1 with errno for a failure.
  std::function<ssize_t(std::size_t count, off_t offset)> before_read;
  std::function<ssize_t(std::size_t count, off_t offset)> before_write;  ///< as above
  bool knows_unnamed = true;                                             ///< O_TMPFILE
  bool knows_direct = true;                                              ///< O_DIRECT
  int error_of_reserving = 0;                                            ///< an errno
};

/// Host memory for the blocks of a test.
struct BlockMemory {
  MemoryLedger ledger;
  std::unique_ptr<Device> device = make_cpu_device();

  /// A buffer for one block.
  BlockBuffer buffer(std::int64_t bytes)
  {
    return {{device.get(), &ledger, Tier::host}, bytes, DType::u8, "a block"};
  }
  /// One with the content that fill() gives it.
  BlockBuffer buffer(std::int64_t bytes, int block, int version = 0);
};

/// Gives a buffer content that differs by block, version and index.
void fill(const BlockBuffer& buffer, int block, int version = 0);
/// Whether it has that content.
bool holds(const BlockBuffer& buffer, int block, int version = 0);

/// Number of blocks in the content of a file that a rank kept and closed; 0 if something in its table of checksums is
/// wrong.
std::int64_t blocks_of(const std::string& file, int rank);

/// Number of files in a folder.
inline std::ptrdiff_t files_in(const std::string& folder)
{
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

/// The path under which this process has the file without a name open that lies in @p folder; empty if there is none.
std::string path_of_unnamed(const std::string& folder);
/// Flips the lowest bit of one byte of a file.
void flip_byte(const std::string& path, off_t offset);
/// Copies bytes of a file to another place in it.
void copy_bytes(const std::string& path, off_t to, off_t from, std::int64_t count);

/// Starts a process that calls @p work and then waits to be killed; kills it when @p work is done.
/// @return  whether it came so far.
bool run_and_kill(const std::function<void()>& work);

}  // namespace rankwise
