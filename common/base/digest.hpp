#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

/// @file
/// SHA-256 digests: two runs that print the same digest hold the same bits.

namespace rankwise {

/// The SHA-256 digest of bytes that arrive piece by piece. It depends on their order, not on how they were cut.
/// @source  FIPS 180-4.
class Sha256 {
 public:
  /// The digest of nothing so far.
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;             ///< the moved-from object can only be destroyed or assigned to
  Sha256& operator=(Sha256&&) noexcept;  ///< as above

  /// Appends @p bytes. Numbers are handed over as std::as_bytes(span); they count as they lie in memory (little-endian).
  void update(std::span<const std::byte> bytes);

  /// The digest of all bytes so far, as 64 hexadecimal digits. More bytes may follow.
  std::string hex() const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// A hash of bytes that takes hardly longer than reading them: two copies that differ have different hashes, but for one
/// chance in 2^64. It is no proof against somebody who wants them to be alike.
/// @source  XXH3, https://xxhash.com.
std::uint64_t fast_hash(std::span<const std::byte> bytes);

/// The digest of elements [first, first + values.size()) of a vector. The sum of the digests of disjoint pieces, modulo
/// 2^64, is that of the whole: so it depends neither on how a vector is cut nor on who has which piece. A piece that is
/// missing, at another place or there twice changes it, but for one chance in 2^64.
/// @param first   index of the first value.
/// @param values  of 4 bytes: float or std::int32_t. Their bits count, so 0 and -0 differ.
template <class T>
std::uint64_t placed_digest(std::int64_t first, std::span<const T> values);

/// The SHA-256 digest of a file's content, read in blocks.
/// @failure  Error when the file cannot be read.
std::string sha256_of_file(const std::string& path);

}  // namespace rankwise
