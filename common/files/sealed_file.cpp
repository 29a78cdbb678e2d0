#include "common/files/sealed_file.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <system_error>
#include <unistd.h>
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

using Digest = std::array<std::byte, sizeof(XXH128_canonical_t)>;

/// The seal as it stands in a file.
struct Seal {
  std::array<char, 16> magic{};
  std::array<char, 32> kind{};
  std::int64_t version = 0, length = 0;
  Digest content{};
  std::array<std::byte, 416> zeros{};
  Digest own{};
};
static_assert(sizeof(Seal) == seal_bytes && std::endian::native == std::endian::little);

// Magic number after PNG's: no text file begins like this, and a transfer that converts line ends damages it.
constexpr std::array<char, 16> magic{'\x89', 'R', 'A', 'N', 'K', 'W', 'I', 'S', 'E', '\r', '\n', '\x1a', '\n'};

/// True if a file begins with these letters.
bool begins_with(const Seal& beginning, std::string_view letters)
{
  return std::string_view(beginning.magic.data(), beginning.magic.size()).starts_with(letters);
}

std::span<std::byte> bytes_of(Seal& seal)
{
  return std::as_writable_bytes(std::span(&seal, 1));
}

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
  return canonical(XXH3_128bits(&seal, offsetof(Seal, own)));
}

std::string kind_name(const Seal& seal)
{
  return {seal.kind.data(), strnlen(seal.kind.data(), seal.kind.size())};
}

Seal make_seal(const FileKind& kind, std::int64_t length, const Digest& content)
{
  Seal seal{.magic = magic, .version = kind.version, .length = length, .content = content};
  check(kind.name.size() <= seal.kind.size(), "the name of a kind of file is too long");
  kind.name.copy(seal.kind.data(), seal.kind.size());
  seal.own = digest_of_seal(seal);
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
  Seal seal = make_seal(kind, length, content);
  check_system(lseek(file.id(), 0, SEEK_SET) == 0 && write_all(file, bytes_of(seal)), doing);
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
  if (begins_with(seal, "\x89HDF\r\n\x1a\n"))
    return fmt::format("is not {}: it is an HDF5 file without Rankwise's seal.", kind.called);
  if (seal.magic != magic) return fmt::format("is not {}: it does not begin with Rankwise's seal.", kind.called);
  if (length < seal_bytes) return fmt::format("is cut short: only {} bytes are left.", length);
  if (seal.own != digest_of_seal(seal))
    return "is damaged: its first 512 bytes do not have the digest that they were written with.";
  if (const std::string name = kind_name(seal); name != kind.name)
    return fmt::format("is not {}: it is a file of kind \"{}\", not \"{}\".", kind.called, name, kind.name);
  if (seal.version != kind.version)
    return fmt::format("is {} of format version {}, which is {} than version {}, the one that this program reads.",
                       kind.called, seal.version, seal.version > kind.version ? "newer" : "older", kind.version);
  if (length < seal.length)
    return fmt::format("is cut short: it has {} of its {} bytes.", group_digits(length), group_digits(seal.length));
  if (length > seal.length)
    return fmt::format("is damaged: it has {} bytes, and {} of them were written.", group_digits(length),
                       group_digits(seal.length));
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
  if (length < 0 || read_at(file, 0, bytes_of(seal)) < 0) return unreadable();
  if (length == 0) return fmt::format("is not {}: it is empty.", kind.called);
  if (std::string why = refusal_of_seal(seal, length, kind); !why.empty()) return why;
  Digest content;
  if (!digest_content(file, content)) return unreadable();
  if (seal.content != content) return "is damaged: its bytes do not have the digest that they were written with.";
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
  constexpr std::string_view elf =
      "\x7F"
      "ELF";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";  // reading a pipe would empty it
  const Descriptor file(path, O_RDONLY);
  Seal beginning{};
  if (!file.good() || read_at(file, 0, bytes_of(beginning)) < std::ssize(elf)) return "";
  if (begins_with(beginning, elf)) return "a program";
  return beginning.magic == magic ? kind_name(beginning) : "";
}

std::string content_digest(const std::string& path)
{
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";  // reading a pipe would empty it
  const Descriptor file(path, O_RDONLY);
  Seal beginning{};
  const std::int64_t count = file.good() ? read_at(file, 0, bytes_of(beginning)) : -1;
  Digest rest{};
  const bool sealed = beginning.magic == magic;
  if (count < 0 || (!sealed && !digest_content(file, rest))) return "";
  Sha256 digest;
  digest.update(bytes_of(beginning).first(static_cast<std::size_t>(count)));
  digest.update(rest);
  return digest.hex();
}

}  // namespace rankwise
