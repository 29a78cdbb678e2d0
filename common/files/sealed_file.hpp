#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/files/output_file.hpp"

/// @file
/// Sealed files: every HDF5 file that we write begins with a block that identifies its format and shows that it is
/// complete.
///
/// The HDF5 library can crash or hang on damaged files, so the seal is checked before the library opens one. It is
/// stored in HDF5's user block, which other programs (h5dump, h5py) skip. Numbers are little-endian:
///
///     offset  bytes
///          0     16  "\x89RANKWISE\r\n\x1a\n" and zeros
///         16     32  kind of file, as "rankwise tokens", and zeros
///         48      8  version of that kind's format
///         56      8  bytes of the whole file
///         64     16  XXH3-128 of all bytes from 512 on
///         80    416  zeros
///        496     16  XXH3-128 of bytes 0 .. 495
///
/// The digests detect damage, not tampering: anyone who can write a file can seal it.

namespace rankwise {

/// A kind of sealed file.
struct FileKind {
  std::string_view name;     ///< name in the seal, at most 32 bytes
  std::int64_t version = 1;  ///< version of the format that this program writes and reads
  std::string_view called;   ///< name in messages, as "a token file"
};

/// Further text for a message about an unusable file.
struct FileRequest {
  std::string asked;   ///< the option that names the file, as "--data=corpus.h5"
  std::string remedy;  ///< the way to make such a file
};

/// Bytes of the seal; HDF5's content begins after them.
inline constexpr std::int64_t seal_bytes = 512;

/// Completes a file: writes the seal to the first seal_bytes bytes of temporary_name(@p path), which are reserved
/// for it, flushes the file to the disk, and renames it to @p path, replacing an existing file.
/// @cost     reads the file once.
/// @failure  Error with the system's reason; the temporary file is removed.
void commit_sealed(const std::string& path, const FileKind& kind);

/// Rejects a file that is incomplete, of another kind or of another version.
/// @param path     the file.
/// @param kind     the expected kind.
/// @param request  further text for the message.
/// @cost           reads the file once.
/// @throws UserError  when it is missing, a folder, unreadable, without a seal, of another kind or version, cut
///                    short, too long, or when a digest does not match.
void check_seal(const std::string& path, const FileKind& kind, const FileRequest& request);

/// The name in a file's seal, or "a program" for an ELF executable; empty for any other file, or if it cannot be read.
std::string kind_of_file(const std::string& path);

/// A digest of a file's bytes. A sealed file has its seal read only, which holds the digest of the rest. Empty if
/// the file cannot be read or is not a regular file.
std::string content_digest(const std::string& path);

}  // namespace rankwise
