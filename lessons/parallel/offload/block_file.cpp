#include "lessons/parallel/offload/block_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "common/base/activity.hpp"
#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

/// Throws Error with @p message and the system's message, unless @p good.
void check_call(bool good, const std::string& message, SourceLocation where = SourceLocation::current())
{
  if (!good) throw Error(fmt::format("{}: {}", message, system_error()), where);
}

/// Memory that a file can be read into.
struct alignas(disk_alignment) Page {
  std::array<std::byte, disk_alignment> bytes;
};

/// Calls @p move (pread or pwrite) until all bytes have been moved.
/// @param piece  bytes; each call starts at a multiple of it, so a partly moved piece is moved again.
/// @return  the failure; empty on success.
template <class Move, class Byte>
std::string move_all(const Move& move, const Descriptor& file, std::int64_t offset, std::span<Byte> bytes,
                     std::int64_t piece)
{
  const std::int64_t total = std::ssize(bytes);
  std::int64_t done = 0;
  while (done < total) {
    const std::int64_t count =
        move(file.id(), bytes.data() + done, static_cast<std::size_t>(total - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error();
    const std::int64_t whole = count - count % piece;
    if (whole == 0)
      return fmt::format("only {} of {} bytes are there", group_digits(done + count), group_digits(total));
    done += whole;
    note_progress();
  }
  return "";
}

/// Opens a new file that has no name; if that fails, with errno.
Descriptor open_unnamed(const std::string& directory)
{
  Descriptor unnamed(directory, O_TMPFILE | O_RDWR, 0600);
  if (unnamed.good()) return unnamed;
  std::string path = directory + "/offload-XXXXXX";
  Descriptor named(mkostemp(path.data(), O_CLOEXEC));
  if (named.good() && unlink(path.c_str()) != 0) {
    const int code = errno;
    named.close();
    errno = code;
  }
  return named;
}

/// End of a kept file.
struct Footer {
  std::array<char, 16> magic{'R', 'a', 'n', 'k', 'w', 'i', 's', 'e', ' ', 'b', 'l', 'o', 'c', 'k', 's', '\n'};
  std::int64_t rank, blocks, block_bytes;
  std::uint64_t checksum;  // of all bytes before it, from the first block's checksum on
};

}  // namespace

// ---- BlockBuffer ----------------------------------------------------------------------------------------------------

BlockBuffer::BlockBuffer(const DeviceMemory& memory, std::int64_t bytes, DType type, std::string_view what)
    : memory_(memory, Category::staging, DType::u8, {bytes + disk_alignment}, what), bytes_(bytes), type_(type)
{
  // A block may be shorter than its place on the disk: earlier contents of this memory must not be written there.
  if (memory.device->kind() == DeviceKind::cpu) std::ranges::fill(this->bytes(), std::byte{});
}

std::span<std::byte> BlockBuffer::bytes() const
{
  std::byte* const first = memory_.tensor().raw();
  const auto behind = reinterpret_cast<std::uintptr_t>(first) % disk_alignment;
  return {first + (behind == 0 ? 0 : disk_alignment - behind), static_cast<std::size_t>(bytes_)};
}

// ---- Opening and closing --------------------------------------------------------------------------------------------

std::string BlockFile::kept_name(const std::string& directory, int rank)
{
  return fmt::format("{}/offload.rank{}", directory, rank);
}

BlockFile::BlockFile(const std::string& directory, int rank, std::int64_t blocks, std::int64_t block_bytes,
                     bool keep)
    : directory_(std::filesystem::absolute(directory)),
      name_(keep ? kept_name(directory, rank) : fmt::format("the offload file of rank {} in {}", rank, directory)),
      rank_(rank),
      block_bytes_(block_bytes),
      checksums_(static_cast<std::size_t>(blocks)),
      keep_(keep)
{
  struct stat status {};
  check_call(stat(directory_.c_str(), &status) == 0,
             fmt::format("the directory {} cannot be used for offloading", directory));
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (keep) unlink(name_.c_str());  // so that no link is followed
  file_ = keep ? Descriptor(name_, O_CREAT | O_EXCL | O_RDWR, 0600) : open_unnamed(directory_);
  check_call(file_.good(), fmt::format("{} cannot be created", name_));
  reserve();
  direct_ = go_direct();
}

void BlockFile::reserve()
{
  const std::int64_t bytes = blocks() * block_bytes_ + (keep_ ? checksums_bytes() : 0);
  int code = 0;
  do code = posix_fallocate(file_.id(), 0, bytes);
  while (code == EINTR);
  if (code == 0) return;
  struct statvfs files {};
  const bool known = fstatvfs(file_.id(), &files) == 0;
  const std::string free =
      known ? group_digits(static_cast<std::int64_t>(files.f_bavail) * static_cast<std::int64_t>(files.f_frsize))
            : "an unknown number of";
  if (keep_) unlink(name_.c_str());
  throw Error(fmt::format("{}: no space for {} blocks of {} bytes: {} (needs {} bytes; {} are free)", name_,
                          blocks(), group_digits(block_bytes_), system_error(code), group_digits(bytes), free));
}

bool BlockFile::go_direct() const
{
  const int flags = fcntl(file_.id(), F_GETFL);
  if (flags < 0 || fcntl(file_.id(), F_SETFL, flags | O_DIRECT) != 0) return false;
  Page page;  // some file systems refuse only at the first read
  if (move_all(pread, file_, 0, std::span<std::byte>(page.bytes), disk_alignment).empty()) return true;
  check_call(fcntl(file_.id(), F_SETFL, flags) == 0, fmt::format("{} cannot be used", name_));
  return false;
}

std::int64_t BlockFile::checksums_bytes() const
{
  const std::int64_t bytes = blocks() * std::int64_t{sizeof(Checksum)} + std::int64_t{sizeof(Footer)};
  return (bytes + disk_alignment - 1) / disk_alignment * disk_alignment;
}

void BlockFile::write_checksums() const
{
  std::vector<Page> pages(static_cast<std::size_t>(checksums_bytes() / disk_alignment));
  const std::span<std::byte> table = std::as_writable_bytes(std::span(pages));
  std::memcpy(table.data(), checksums_.data(), checksums_.size() * sizeof(Checksum));
  Footer footer{.rank = rank_, .blocks = blocks(), .block_bytes = block_bytes_, .checksum = 0};
  std::byte* const end = &table[table.size() - sizeof(Footer)];
  std::memcpy(end, &footer, sizeof(Footer));
  footer.checksum = fast_hash(table.first(table.size() - sizeof(footer.checksum)));
  std::memcpy(end, &footer, sizeof(Footer));
  const std::string wrong = move_all(pwrite, file_, blocks() * block_bytes_, table, piece_bytes());
  check(wrong.empty(), fmt::format("{}: the checksums cannot be written: {}", name_, wrong));
  check_call(fsync(file_.id()) == 0, fmt::format("{} cannot be completed", name_));
}

void BlockFile::close()
{
  if (!file_.good()) return;
  if (keep_) {
    check_there();
    write_checksums();
  }
  check_call(file_.close(), fmt::format("{} cannot be closed", name_));
}

// ---- Blocks ---------------------------------------------------------------------------------------------------------

std::string BlockFile::place_of(std::int64_t block) const
{
  return fmt::format("{}: block {} of {} (bytes {} to {})", name_, block, blocks(),
                     group_digits(block * block_bytes_), group_digits((block + 1) * block_bytes_ - 1));
}

void BlockFile::check_request(std::int64_t block, std::span<const std::byte> bytes) const
{
  check(file_.good(), fmt::format("{} is closed", name_));
  check(block >= 0 && block < blocks(),
        fmt::format("{} has no block {}: it has {} blocks, from 0 on", name_, block, blocks()));
  check(static_cast<std::int64_t>(bytes.size()) == block_bytes_,
        fmt::format("{}: the buffer has {} bytes and a block has {}", place_of(block),
                    group_digits(std::ssize(bytes)), group_digits(block_bytes_)));
  check(reinterpret_cast<std::uintptr_t>(bytes.data()) % disk_alignment == 0,
        fmt::format("{}: its buffer is not aligned to {} bytes", place_of(block), disk_alignment));
  check_there();
}

void BlockFile::check_there() const
{
  struct stat status {};
  const std::string lost = fmt::format("{}: the directory {} is gone", name_, directory_);
  check_call(stat(directory_.c_str(), &status) == 0, lost);
  check(status.st_dev == device_ && status.st_ino == inode_, lost + " (another one has its name now)");
  if (!keep_) return;
  check(fstat(file_.id(), &status) == 0 && status.st_nlink > 0, fmt::format("{} is gone: it was removed", name_));
}

void BlockFile::write(std::int64_t block, std::span<const std::byte> bytes)
{
  check_request(block, bytes);
  Checksum& checksum = checksums_[static_cast<std::size_t>(block)];
  checksum = {};
  const std::uint64_t value = fast_hash(bytes);
  const std::string wrong = move_all(pwrite, file_, block * block_bytes_, bytes, piece_bytes());
  check(wrong.empty(), fmt::format("{} cannot be written: {}", place_of(block), wrong));
  checksum = {value, 1};
}

void BlockFile::read(std::int64_t block, std::span<std::byte> bytes)
{
  check_request(block, bytes);
  const Checksum& checksum = checksums_[static_cast<std::size_t>(block)];
  check(checksum.written == 1, fmt::format("{} cannot be read: it was never written", place_of(block)));
  const std::string wrong = move_all(pread, file_, block * block_bytes_, bytes, piece_bytes());
  check(wrong.empty(), fmt::format("{} cannot be read: {}", place_of(block), wrong));
  const std::uint64_t value = fast_hash(bytes);
  check(value == checksum.value,
        fmt::format("{} is damaged: its checksum is {:016x}, and it was written with {:016x}", place_of(block),
                    value, checksum.value));
}

}  // namespace rankwise
