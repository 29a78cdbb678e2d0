#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "common/files/descriptor.hpp"

/// @file
/// Atomic replacement of files.
///
/// A file is written under a temporary name in the same folder and renamed when it is complete: readers see either
/// the old content or the new, even after a crash. If the name is a symbolic link, the file to which it points is
/// replaced, and the link is kept; other hard links of the file keep the old content. The new file has the owner, group and permissions of the old one.

namespace rankwise {

/// The file to which a name refers: follows symbolic links, even if the target does not exist yet.
/// @throws UserError  for cyclic links, and for links of other users in folders where everybody may make them.
std::string resolve_links(const std::string& path);

/// True if @p path is a device, a pipe, or a file that this process has open (/dev/stdout), which cannot be
/// replaced but only written to.
bool is_stream(const std::string& path);

/// The most bytes that a file name in this folder may have.
std::size_t longest_name(const std::string& folder);

/// The resolved path with a text before and after its file name. If that would be too long, a digest of the name replaces its end.
std::string name_beside(const std::string& path, std::string_view before, std::string_view after);

/// Temporary name of @p path: in the folder of the resolved file, with the number of the job in its name. All ranks
/// of a job use the same name, and different jobs use different ones.
std::string temporary_name(const std::string& path);

/// True if @p path itself, without following links, could be a temporary file of @p target, of this job or another.
bool is_temporary_of(const std::string& path, const std::string& target);

/// Sets the number of the job; by default it is a random number drawn by this process.
void set_job_number(std::uint64_t number);

/// Gives an open file the owner, group, permissions, access list (ACL) and users' attributes of @p path, if that exists.
/// @return  false, with errno set, if the system does not allow it.
bool copy_owner_and_mode(const Descriptor& file, const std::string& path);

/// Creates the empty temporary file of @p path.
/// @failure  Error with the system's reason, also if the file exists already.
void create_temporary(const std::string& path);

/// Renames the temporary file of @p path, whose content is on the disk, to its name; the rename is on the disk when
/// the call returns.
/// @failure  Error with the system's reason; the temporary file is removed, and an existing file is kept.
void commit_temporary(const std::string& path);

/// Removes the temporary file of @p path, if it exists.
void remove_temporary(const std::string& path);

/// Calls @p work, which writes the temporary file of @p path; removes the file if @p work throws.
void or_remove_temporary(const std::string& path, const std::function<void()>& work);

/// A file that is written sequentially. It is removed unless it is committed or kept.
class OutputFile {
 public:
  /// Creates the temporary file.
  /// @failure  Error with the system's reason.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Writes the next bytes.
  /// @failure  Error, for instance for a full disk.
  void write(std::span<const std::byte> bytes);
  /// Flushes the file to the disk and keeps it under its temporary name, for callers that continue with it under that name.
  /// @failure  Error; the temporary file is removed.
  void keep();
  /// Keeps the file and renames it. Nothing can be written afterwards.
  /// @failure  Error; an existing file of that name is kept.
  void commit();

 private:
  std::string path_;
  Descriptor file_;
  bool kept_ = false;
};

/// Writes a whole file, or to @p path directly if is_stream().
/// @failure  Error; an existing file is then unchanged, unless it is a stream.
void write_file(const std::string& path, std::string_view content);

/// A file to which a run adds, as a log. Its earlier content stays.
class AppendedFile {
 public:
  /// Opens nothing yet.
  explicit AppendedFile(std::string path);

  /// Adds bytes at the end of the file, which is created if it does not exist; they are visible to readers when the call
  /// returns. A stream stays open, because its reader would take a close for the end; a file may be renamed meanwhile.
  /// @failure  Error, for instance for a full disk, or a pipe whose reader has gone or does not come within a minute.
  void add(std::string_view content);
  /// Closes a stream to which was added.
  /// @failure  Error, if written bytes are lost.
  void close();

 private:
  std::string path_;
  bool stays_open_;
  Descriptor file_{-1};
};

}  // namespace rankwise
