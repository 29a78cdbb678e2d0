#include "common/files/sealed_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>
#include <xxhash.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include "common/base/activity.hpp"
#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/descriptor.hpp"

namespace rankwise {

namespace {

using Seal = std::array<std::byte, seal_bytes>;
using Digest = std::array<std::byte, sizeof(XXH128_canonical_t)>;

// Offsets of the fields of a seal.
constexpr std::size_t magic_at = 0, kind_at = 16, version_at = 48, length_at = 56, content_at = 64, own_at = 496;

// Magic number after PNG's: no text file begins like this, and a transfer that converts line ends damages it.
constexpr std::array<char, 16> magic{'\x89', 'R', 'A', 'N', 'K', 'W', 'I', 'S', 'E', '\r', '\n', '\x1a', '\n'};
constexpr std::array<char, 8> hdf5_magic{'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};

Digest canonical(XXH128_hash_t hash)
{
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Digest digest;
  std::memcpy(digest.data(), &bytes, digest.size());
  return digest;
}

/// The digest of all bytes after the seal.
/// @return  false after a read error.
bool digest_content(const Descriptor& file, Digest& digest)
{
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  check(state != nullptr && XXH3_128bits_reset(state.get()) == XXH_OK, "xxHash could not begin a digest");
  std::vector<std::byte> block(1 << 20);
  for (std::int64_t offset = seal_bytes;;) {
    const std::int64_t count = read_at(file, offset, block);
    if (count < 0) return false;
    if (count == 0) break;
    XXH3_128bits_update(state.get(), block.data(), static_cast<std::size_t>(count));
    offset += count;
    note_progress();
  }
  digest = canonical(XXH3_128bits_digest(state.get()));
  return true;
}

Digest digest_of_seal(const Seal& seal)
{
  return canonical(XXH3_128bits(seal.data(), own_at));
}

/// Copies @p bytes to offset @p at of the seal.
void put(Seal& seal, std::size_t at, std::span<const std::byte> bytes)
{
  std::copy(bytes.begin(), bytes.end(), seal.begin() + static_cast<std::ptrdiff_t>(at));
}

bool holds(const Seal& seal, std::size_t at, std::span<const std::byte> bytes)
{
  return std::equal(bytes.begin(), bytes.end(), seal.begin() + static_cast<std::ptrdiff_t>(at));
}

void put_number(Seal& seal, std::size_t at, std::int64_t value)
{
  for (std::size_t i = 0; i < 8; ++i) seal[at + i] = static_cast<std::byte>(value >> 8 * i);
}

std::int64_t number(const Seal& seal, std::size_t at)
{
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::to_integer<std::uint64_t>(seal[at + i]) << 8 * i;
  return static_cast<std::int64_t>(value);
}

std::string kind_name(const Seal& seal)
{
  const std::string field(reinterpret_cast<const char*>(seal.data()) + kind_at, version_at - kind_at);
  return field.substr(0, field.find('\0'));
}

Seal make_seal(const FileKind& kind, std::int64_t length, const Digest& content)
{
  check(kind.name.size() <= version_at - kind_at, "the name of a kind of file is too long");
  Seal seal{};
  put(seal, magic_at, std::as_bytes(std::span(magic)));
  put(seal, kind_at, std::as_bytes(std::span(kind.name)));
  put_number(seal, version_at, kind.version);
  put_number(seal, length_at, length);
  put(seal, content_at, content);
  put(seal, own_at, digest_of_seal(seal));
  return seal;
}

/// Writes the seal of a file that is otherwise complete, and flushes it to the disk.
void seal_file(const std::string& path, const FileKind& kind)
{
  const std::string doing = "complete " + path;
  Descriptor file(path, O_RDWR | O_NOFOLLOW);
  check_system(file.good(), doing);
  check_system(fsync(file.id()) == 0, doing);
  const off_t length = lseek(file.id(), 0, SEEK_END);
  check_system(length >= 0, doing);
  check(length >= seal_bytes, fmt::format("{} is too short for a seal", path));
  Digest content;
  check_system(digest_content(file, content), doing);
  const Seal seal = make_seal(kind, length, content);
  check_system(lseek(file.id(), 0, SEEK_SET) == 0 && write_all(file, seal), doing);
  check_system(fsync(file.id()) == 0, doing);
  check_system(file.close(), doing);
}

}  // namespace

// ---- Writing --------------------------------------------------------------------------------------------------------

void commit_sealed(const std::string& path, const FileKind& kind)
{
  or_remove_temporary(path, [&] { seal_file(temporary_name(path), kind); });
  commit_temporary(path);
}

// ---- Reading --------------------------------------------------------------------------------------------------------

namespace {

/// Reason why the file cannot be used; empty if it can.
std::string refusal_of_name(const std::string& path)
{
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return "does not exist" + looked_for(path) + ".";
  if (status.type() == std::filesystem::file_type::none)
    return fmt::format("cannot be found: {}.", error.message());
  if (std::filesystem::is_directory(status)) return "is a folder, not a file.";
  if (!std::filesystem::is_regular_file(status)) return "is a device or a pipe, not a file.";
  return "";
}

/// Reason why the seal cannot be used; empty if it can.
std::string refusal_of_seal(const Seal& seal, std::int64_t length, const FileKind& kind)
{
  if (holds(seal, 0, std::as_bytes(std::span(hdf5_magic))))
    return fmt::format("is not {}: it is an HDF5 file without Rankwise's seal.", kind.called);
  if (!holds(seal, magic_at, std::as_bytes(std::span(magic))))
    return fmt::format("is not {}: it does not begin with Rankwise's seal.", kind.called);
  if (length < seal_bytes) return fmt::format("is cut short: only {} bytes are left.", length);
  if (!holds(seal, own_at, digest_of_seal(seal)))
    return "is damaged: its first 512 bytes do not have the digest that they were written with.";
  if (const std::string name = kind_name(seal); name != kind.name)
    return fmt::format("is not {}: it is a file of kind \"{}\", not \"{}\".", kind.called, name, kind.name);
  if (const std::int64_t version = number(seal, version_at); version != kind.version)
    return fmt::format("is {} of format version {}, which is {} than version {}, the one that this program reads.",
                       kind.called, version, version > kind.version ? "newer" : "older", kind.version);
  const std::int64_t sealed_length = number(seal, length_at);
  if (length < sealed_length)
    return fmt::format("is cut short: it has {} of its {} bytes.", group_digits(length),
                       group_digits(sealed_length));
  if (length > sealed_length)
    return fmt::format("is damaged: it has {} bytes, and {} of them were written.", group_digits(length),
                       group_digits(sealed_length));
  return "";
}

/// Reason why the whole file cannot be used; empty if it can.
std::string refusal(const std::string& path, const FileKind& kind)
{
  if (std::string why = refusal_of_name(path); !why.empty()) return why;
  const Descriptor file(path, O_RDONLY);
  const auto unreadable = [] { return fmt::format("cannot be read: {}.", system_error()); };
  if (!file.good()) return unreadable();
  const off_t length = lseek(file.id(), 0, SEEK_END);
  Seal seal{};
  if (length < 0 || read_at(file, 0, seal) < 0) return unreadable();
  if (length == 0) return fmt::format("is not {}: it is empty.", kind.called);
  if (std::string why = refusal_of_seal(seal, length, kind); !why.empty()) return why;
  Digest content;
  if (!digest_content(file, content)) return unreadable();
  if (!holds(seal, content_at, content))
    return "is damaged: its bytes do not have the digest that they were written with.";
  return "";
}

}  // namespace

void check_seal(const std::string& path, const FileKind& kind, const FileRequest& request)
{
  const std::string why = refusal(path, kind);
  if (!why.empty()) throw UserError(fmt::format("{} {}", request.asked, why), request.remedy);
}

std::string kind_of_file(const std::string& path)
{
  constexpr std::array<char, 4> elf{'\x7F', 'E', 'L', 'F'};
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";  // reading a pipe would empty it
  const Descriptor file(path, O_RDONLY);
  Seal beginning{};
  if (!file.good() || read_at(file, 0, beginning) < std::ssize(elf)) return "";
  if (holds(beginning, 0, std::as_bytes(std::span(elf)))) return "a program";
  if (!holds(beginning, magic_at, std::as_bytes(std::span(magic)))) return "";
  const auto* const name = reinterpret_cast<const char*>(&beginning[kind_at]);
  return {name, strnlen(name, version_at - kind_at)};
}

std::string content_digest(const std::string& path)
{
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";  // reading a pipe would empty it
  const Descriptor file(path, O_RDONLY);
  Seal beginning{};
  const std::int64_t count = file.good() ? read_at(file, 0, beginning) : -1;
  Digest rest{};
  const bool sealed = holds(beginning, magic_at, std::as_bytes(std::span(magic)));
  if (count < 0 || (!sealed && !digest_content(file, rest))) return "";
  Sha256 digest;
  digest.update(std::span(beginning).first(static_cast<std::size_t>(count)));
  digest.update(rest);
  return digest.hex();
}

}  // namespace rankwise
