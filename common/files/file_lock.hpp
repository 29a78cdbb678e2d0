#pragma once

#include <string>

#include "common/files/descriptor.hpp"

/// @file
/// Locks that allow only one job at a time to write a file.

namespace rankwise {

/// Exclusive right to write a file, held until the end of the scope: an advisory lock (flock) on the hidden file
/// `.NAME.lock` beside it, which names its holder. The system releases the lock when the process ends for any
/// reason. Taking the lock removes temporary files of this file that earlier jobs left behind.
class FileLock {
 public:
  /// @param path   the file; links are followed, so that all its names share one lock.
  /// @param asked  the option that names it, as "--checkpoint=run.h5".
  /// @throws UserError  when another process holds the lock, naming its host and process number, or when no lock file
  ///                    can be created. If the file system does not support locks, a warning is printed on standard
  ///                    error and no lock is held.
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
