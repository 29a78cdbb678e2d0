#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/files/output_file.hpp"

/// @file
/// Sealed files: every HDF5 file that we write begins with a block that says what it is, and that all of it is there.
///
/// The HDF5 library can crash or hang on damaged files, so the seal is checked before that library opens one. It lies in
/// HDF5's user block, which other programs (h5dump, h5py) skip by themselves. Numbers are little-endian:
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
/// The digests notice damage, not malice: whoever can write a file can seal it.

namespace rankwise {

/// A kind of sealed file.
struct FileKind {
  std::string_view name;     ///< as it stands in the seal, at most 32 bytes
  std::int64_t version = 1;  ///< of the format that this program writes and reads
  std::string_view called;   ///< in messages, as "a token file"
};

/// What a message about an unusable file says besides.
struct FileRequest {
  std::string asked;   ///< how the user named the file, as "--data=corpus.h5"
  std::string remedy;  ///< how such a file is made
};

/// Bytes of the seal; what HDF5 writes begins behind them.
inline constexpr std::int64_t seal_bytes = 512;

/// Completes a file: seals the one at temporary_name(@p path), which begins with seal_bytes bytes for that, makes sure
/// that it has reached the disk, and gives it its name. Whatever had that name stays until then and is replaced then.
/// @cost     reads the file once.
/// @failure  Error with the system's reason; the temporary file is removed.
void commit_sealed(const std::string& path, const FileKind& kind);

/// Refuses a file that is not whole, of this kind and of this version.
/// @param path     the file.
/// @param kind     what it should be.
/// @param request  what else a refusal says.
/// @cost           reads the file once.
/// @throws UserError  when it is missing, a folder, unreadable, without a seal, of another kind or version, cut short,
///                    too long, or when a digest does not fit.
void check_seal(const std::string& path, const FileKind& kind, const FileRequest& request);

}  // namespace rankwise
