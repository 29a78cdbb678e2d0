#pragma once

#include <string>

#include "common/files/descriptor.hpp"

/// @file
/// One job at a time writes a file.

namespace rankwise {

/// The right to write a file, held until the end of the scope: an advisory lock (flock) on the hidden file `.NAME.lock` beside
/// it, which names its holder. The system gives the lock back when a process ends, however it ends. With the lock comes the
/// duty to clean up: temporary files that jobs before left of this file are removed.
class FileLock {
 public:
  /// @param path   the file; links are followed, so that all its names have one lock.
  /// @param asked  how the user named it, as "--checkpoint=run.h5".
  /// @throws UserError  when another process holds the lock, naming its host and number, and when no lock file can be made.
  /// Where the file system has no locks this is said on standard error, and nothing is held.
  FileLock(const std::string& path, const std::string& asked);
  FileLock(FileLock&&) noexcept = default;  ///< takes over the lock
  FileLock& operator=(FileLock&&) = delete;
  /// Removes the lock file.
  ~FileLock();

 private:
  std::string name_;
  Descriptor file_{-1};
};

}  // namespace rankwise
