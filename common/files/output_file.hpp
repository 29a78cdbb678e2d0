#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "common/files/descriptor.hpp"

/// @file
/// Files that get their name when they are complete.
///
/// A file is written under a temporary name in the folder of its own and renamed at the end: whoever opens it sees the
/// old content or the new, whatever happens in between. Where the name is a symbolic link, the file behind it is the
/// one that is replaced, and the link stays.

namespace rankwise {

/// The file that a name stands for: symbolic links followed, also where the last one leads to nothing yet.
/// @throws UserError  when the links never end.
std::string resolve_links(const std::string& path);

/// Whether writing to @p path means writing to something that is there and cannot be replaced: a device, a pipe, or what
/// this process has open (/dev/stdout).
bool is_stream(const std::string& path);

/// Where the content of @p path is written before it is complete: beside the resolved file, with the number of the job in
/// its name. All ranks of a job use the same, and no two jobs do.
std::string temporary_name(const std::string& path);

/// Whether @p path could be a temporary file of @p target, of this job or of another one.
bool is_temporary_of(const std::string& path, const std::string& target);

/// Sets the number of the job. Until then a number that this process drew at random serves.
void set_job_number(std::uint64_t number);

/// Makes the temporary file of @p path, empty.
/// @failure  Error with the system's reason, also where something has that name already.
void create_temporary(const std::string& path);

/// Gives the temporary file of @p path, which has reached the disk, its name; so has that when the call returns.
/// @failure  Error with the system's reason; the temporary file is removed, and what had the name stays.
void commit_temporary(const std::string& path);

/// Removes the temporary file of @p path, if there is one.
void remove_temporary(const std::string& path);

/// Calls @p work, which writes the temporary file of @p path; the file does not survive an exception.
void or_remove_temporary(const std::string& path, const std::function<void()>& work);

/// A file that is written from its beginning to its end. It vanishes unless it is committed.
class OutputFile {
 public:
  /// Makes the temporary file.
  /// @failure  Error with the system's reason.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Writes the next bytes.
  /// @failure  Error, for a full disk too.
  void write(std::span<const std::byte> bytes);
  /// Closes the file and leaves it under its temporary name, for those who go on with it under that name.
  /// @failure  Error; the temporary file is removed.
  void keep();
  /// Brings the file to the disk and gives it its name. Nothing can be written afterwards.
  /// @failure  Error; what had the name stays.
  void commit();

 private:
  std::string path_;
  Descriptor file_;
  bool kept_ = false;
};

/// Writes a whole file, or to what is_stream().
/// @failure  Error when any of it fails; what had the name before stays as it was, unless it is a stream.
void write_file(const std::string& path, std::string_view content);

}  // namespace rankwise
