#include "common/base/digest.hpp"

#include <array>
#include <bit>
#include <xxhash.h>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "common/base/error.hpp"

namespace rankwise {

Sha256::Sha256() : state_(EVP_MD_CTX_new(), &EVP_MD_CTX_free)
{
  check(state_ != nullptr && EVP_DigestInit_ex(state_.get(), EVP_sha256(), nullptr) == 1,
        "OpenSSL could not begin a SHA-256 digest");
}

void Sha256::update(std::span<const std::byte> bytes)
{
  check(EVP_DigestUpdate(state_.get(), bytes.data(), bytes.size()) == 1, "OpenSSL could not extend a digest");
}

std::string Sha256::hex() const
{
  // Finishing invalidates the state, so a copy is finished.
  const Sha256 copy;
  std::array<unsigned char, 32> digest{};
  check(EVP_MD_CTX_copy_ex(copy.state_.get(), state_.get()) == 1 &&
            EVP_DigestFinal_ex(copy.state_.get(), digest.data(), nullptr) == 1,
        "OpenSSL could not finish a digest");
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::uint64_t fast_hash(std::span<const std::byte> bytes)
{
  return XXH3_64bits(bytes.data(), bytes.size());
}

template <class T>
std::uint64_t placed_digest(std::int64_t first, std::span<const T> values)
{
  // The finalizer of MurmurHash3: each bit of the place and of the value changes half of the result's.
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15, multiplier_1 = 0xFF51AFD7ED558CCD,
                          multiplier_2 = 0xC4CEB9FE1A85EC53;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t place = static_cast<std::uint64_t>(first) + i + 1;
    std::uint64_t hash = place * odd + std::bit_cast<std::uint32_t>(values[i]);
    hash = (hash ^ hash >> 33) * multiplier_1;
    hash = (hash ^ hash >> 33) * multiplier_2;
    sum += hash ^ hash >> 33;
  }
  return sum;
}

template std::uint64_t placed_digest(std::int64_t, std::span<const float>);
template std::uint64_t placed_digest(std::int64_t, std::span<const std::int32_t>);

}  // namespace rankwise
