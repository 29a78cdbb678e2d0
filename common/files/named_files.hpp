#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/files/file_lock.hpp"

/// @file
/// The files that a user names on a command line: each can be used as it is meant, and none takes another's place.

namespace rankwise {

/// What a program does with a file.
enum class FileUse {
  read,
  replace,  ///< write it, under its name when it is complete
  print,    ///< the same, or write to a device or pipe
};

/// A file that the user named.
struct NamedFile {
  std::string path;             ///< as given
  std::string asked;            ///< with what names it, as "--report=run.json"
  FileUse use = FileUse::read;  ///< what is done with it
};

/// Refuses files of which one would replace another, and those that cannot be written. Nothing is created, changed or read.
/// @throws UserError  for two names of one file of which one is written, a file to read that is a temporary one of a file to
///                    write, a folder, a missing folder or one without leave to write, a device or pipe that would be
///                    replaced, and links that never end.
void check_files(std::span<const NamedFile> files);

/// Locks all files that will be written, in the given order.
/// @throws UserError  naming the process that has one of them.
std::vector<FileLock> lock_files(std::span<const NamedFile> files);

}  // namespace rankwise
