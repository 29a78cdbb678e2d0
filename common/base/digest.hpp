#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

/// @file
/// SHA-256 digests: two runs that print the same digest hold the same bits.

struct evp_md_ctx_st;  ///< OpenSSL's state of a digest

namespace rankwise {

/// SHA-256 digest of bytes that arrive piece by piece. It depends on their order, not on the sizes of the pieces.
/// @source  FIPS 180-4.
class Sha256 {
 public:
  /// Starts with the digest of no bytes.
  Sha256();

  /// Appends @p bytes. Pass numbers as std::as_bytes(span): their bytes in memory count (little-endian).
  void update(std::span<const std::byte> bytes);

  /// The digest of all bytes so far, as 64 hexadecimal digits. More bytes may follow.
  std::string hex() const;

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> state_;
};

/// Hash of bytes at nearly the speed of reading them. Two different copies collide with probability 2^-64; it does
/// not protect against deliberate collisions.
/// @source  XXH3, https://xxhash.com.
std::uint64_t fast_hash(std::span<const std::byte> bytes);

/// Digest of elements [first, first + values.size()) of a vector. The digests of disjoint pieces add up, modulo
/// 2^64, to the digest of the whole vector, so the result depends neither on how the vector is sharded nor on which
/// rank holds which shard. A missing, misplaced or repeated piece changes it, except with probability 2^-64.
/// @param first   index of the first value.
/// @param values  elements of 4 bytes, float or std::int32_t. Their bits count, so 0 and -0 differ.
template <class T>
std::uint64_t placed_digest(std::int64_t first, std::span<const T> values);

}  // namespace rankwise
