#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "common/base/source_location.hpp"

/// @file
/// File descriptors that close themselves, and checked system calls.

namespace rankwise {

/// The system's text for an error, by default for this thread's errno.
std::string system_error(int code = errno);

/// Throws Error "cannot @p doing: " with the system's reason unless @p good, the success of a call that sets errno.
void check_system(bool good, std::string_view doing, SourceLocation where = SourceLocation::current());

/// An open file, closed at the end of the scope.
class Descriptor {
 public:
  /// Opens a file; good() says whether that succeeded.
  /// @param path   path of the file.
  /// @param flags  flags of open(2); O_CLOEXEC is added.
  /// @param mode   permissions of a file that is created; the process's umask applies.
  Descriptor(const std::string& path, int flags, mode_t mode = 0666);
  /// Takes over an open descriptor.
  explicit Descriptor(int id) : id_(id) {}
  Descriptor(Descriptor&& other) noexcept;             ///< takes over the open file
  Descriptor& operator=(Descriptor&& other) noexcept;  ///< as above
  ~Descriptor();

  /// True if a file is open.
  bool good() const { return id_ >= 0; }
  /// The number of the open file.
  int id() const { return id_; }
  /// Closes now. Returns false, with errno set, if that fails: some file systems report a failed write only here.
  bool close();

 private:
  int id_;
};

/// Writes all bytes at the descriptor's position. Returns false, with errno set, if some could not be written.
bool write_all(const Descriptor& file, std::span<const std::byte> bytes);

/// Reads from @p offset on until @p out is full or the file ends.
/// @return  the number of bytes read; -1, with errno set, after an error.
std::int64_t read_at(const Descriptor& file, std::int64_t offset, std::span<std::byte> out);

}  // namespace rankwise
