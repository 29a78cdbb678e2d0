#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/file_lock.hpp"

/// @file
/// Checks of the files that a user names on a command line: each is usable, and none overwrites another.

namespace rankwise {

/// Use of a file that a command line names.
enum class FileUse {
  read,
  replace,  ///< write it, and give it its name when it is complete
  print,    ///< as replace, or write to a device or pipe
};

/// A file that the user named.
struct NamedFile {
  std::string path;             ///< as given
  std::string asked;            ///< the option that names it, as "--report=run.json"
  FileUse use = FileUse::read;  ///< its use by the program
  std::string_view kind{};      ///< name in the seal of a sealed file that is written; empty: it has none
};

/// Rejects files that would overwrite each other or cannot be written. Creates, changes and reads nothing.
/// @throws UserError  for two names of the same file of which one is written, an input file that is the temporary
///                    file of an output file, a folder, a missing or read-only folder, a write-protected file, a
///                    name that is too long, a device or pipe that would be replaced, cyclic links, and an output
///                    that would replace a program or a sealed file of another kind.
void check_files(std::span<const NamedFile> files);

/// Locks all files that will be written, in the given order.
/// @throws UserError  naming the process that holds the lock of one of them.
std::vector<FileLock> lock_files(std::span<const NamedFile> files);

}  // namespace rankwise
