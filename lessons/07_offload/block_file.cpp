#include "lessons/07_offload/block_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "common/base/activity.hpp"
#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/descriptor.hpp"

namespace rankwise {

namespace {

/// Throws Error with @p message and the system's message, unless @p good.
void check_call(bool good, const std::string& message, SourceLocation where = SourceLocation::current())
{
  if (!good) throw Error(fmt::format("{}: {}", message, system_error()), where);
}

std::int64_t rounded_up(std::int64_t bytes)
{
  return (bytes + disk_alignment - 1) / disk_alignment * disk_alignment;
}

/// Memory that a file can be read into.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::int64_t bytes)
      : first_(static_cast<std::byte*>(std::aligned_alloc(disk_alignment, static_cast<std::size_t>(bytes))),
               std::free),
        size_(static_cast<std::size_t>(bytes))
  {
    check(first_ != nullptr, fmt::format("the host has no {} bytes of memory left", group_digits(bytes)));
    std::fill_n(first_.get(), size_, std::byte{0});
  }
  std::span<std::byte> all() const { return {first_.get(), size_}; }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> first_;
  std::size_t size_;
};

/// Calls @p move(done) until @p total bytes have been moved. Each call moves some bytes from offset `done` on, and
/// returns their number, or -1 with errno.
/// @param piece  bytes; each call starts at a multiple of it, so a partly moved piece is moved again.
/// @return  the failure; empty on success.
template <class Move>
std::string move_all(std::int64_t total, std::int64_t piece, const Move& move)
{
  std::int64_t done = 0;
  while (done < total) {
    const std::int64_t count = move(done);
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

std::string read_all(int file, std::int64_t offset, std::span<std::byte> bytes, std::int64_t piece)
{
  return move_all(static_cast<std::int64_t>(bytes.size()), piece, [&](std::int64_t done) -> std::int64_t {
    return pread(file, bytes.data() + done, bytes.size() - static_cast<std::size_t>(done), offset + done);
  });
}

std::string write_all(int file, std::int64_t offset, std::span<const std::byte> bytes, std::int64_t piece)
{
  return move_all(static_cast<std::int64_t>(bytes.size()), piece, [&](std::int64_t done) -> std::int64_t {
    return pwrite(file, bytes.data() + done, bytes.size() - static_cast<std::size_t>(done), offset + done);
  });
}

/// Opens a new file that has no name; -1 with errno.
int open_unnamed(const std::string& directory)
{
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  std::string path = directory + "/offload-XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0 && unlink(path.c_str()) != 0) {
    const int code = errno;
    close(named);
    errno = code;
    return -1;
  }
  return named;
}

constexpr std::array<char, 16> magic{'R', 'a', 'n', 'k', 'w', 'i', 's', 'e',
                                     ' ', 'b', 'l', 'o', 'c', 'k', 's', '\n'};

}  // namespace

/// End of a kept file.
struct BlockFile::Footer {
  std::array<char, 16> magic;
  std::int64_t rank, blocks, block_bytes;
  std::uint64_t checksum;  // of all bytes before it, from the first block's checksum on
};

// ---- Opening --------------------------------------------------------------------------------------------------------

std::string BlockFile::kept_name(const std::string& directory, int rank)
{
  return fmt::format("{}/offload.rank{}", directory, rank);
}

BlockFile::BlockFile(const std::string& directory, int rank)
    : directory_(std::filesystem::absolute(directory)), name_(kept_name(directory, rank)), rank_(rank)
{
  struct stat status {};
  check_call(stat(directory_.c_str(), &status) == 0,
             fmt::format("the directory {} cannot be used for offloading", directory));
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

BlockFile::BlockFile(const std::string& directory, int rank, std::int64_t blocks, std::int64_t block_bytes,
                     const BlockFileOptions& options)
    : BlockFile(directory, rank)
{
  check(blocks >= 1 && block_bytes >= 1 && block_bytes % disk_alignment == 0,
        fmt::format("{} blocks of {} bytes: a file needs at least one, and their size must be a multiple of {}",
                    blocks, block_bytes, disk_alignment));
  keep_ = options.keep;
  block_bytes_ = block_bytes;
  checksums_.resize(static_cast<std::size_t>(blocks));
  if (!keep_) name_ = fmt::format("the offload file of rank {} in {}", rank, directory);
  id_ = keep_ ? open(name_.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600) : open_unnamed(directory_);
  check_call(id_ >= 0, fmt::format("{} cannot be created", name_));
  // From here on the destructor closes it: another constructor has already returned.
  reserve();
  direct_ = options.direct && go_direct();
}

BlockFile BlockFile::open_kept(const std::string& directory, int rank)
{
  return {directory, rank, Kept{}};
}

BlockFile::~BlockFile()
{
  if (id_ >= 0) ::close(id_);
}

void BlockFile::reserve()
{
  const std::int64_t bytes = blocks() * block_bytes_ + (keep_ ? checksums_bytes() : 0);
  int code = 0;
  do code = posix_fallocate(id_, 0, bytes);
  while (code == EINTR);
  if (code == 0) return;
  struct statvfs files {};
  const bool known = fstatvfs(id_, &files) == 0;
  const std::string free =
      known ? group_digits(static_cast<std::int64_t>(files.f_bavail) * static_cast<std::int64_t>(files.f_frsize))
            : "an unknown number of";
  if (keep_) unlink(name_.c_str());
  throw Error(fmt::format("{}: no space for {} blocks of {} bytes: {} (needs {} bytes; {} are free)", name_,
                          blocks(), group_digits(block_bytes_), system_error(code), group_digits(bytes), free));
}

bool BlockFile::go_direct() const
{
  const int flags = fcntl(id_, F_GETFL);
  if (flags < 0 || fcntl(id_, F_SETFL, flags | O_DIRECT) != 0) return false;
  const AlignedBytes some(disk_alignment);  // some file systems refuse only at the first read
  if (read_all(id_, 0, some.all(), disk_alignment).empty()) return true;
  check_call(fcntl(id_, F_SETFL, flags) == 0, fmt::format("{} cannot be used", name_));
  return false;
}

BlockFile::BlockFile(const std::string& directory, int rank, Kept) : BlockFile(directory, rank)
{
  keep_ = true;
  writable_ = false;
  id_ = open(name_.c_str(), O_RDONLY | O_CLOEXEC);
  check_call(id_ >= 0, fmt::format("{} cannot be opened", name_));
  read_checksums();
  direct_ = go_direct();
}

// ---- Blocks ---------------------------------------------------------------------------------------------------------

std::string BlockFile::place_of(std::int64_t block) const
{
  return fmt::format("{}: block {} of {} (bytes {} to {})", name_, block, blocks(),
                     group_digits(block * block_bytes_), group_digits((block + 1) * block_bytes_ - 1));
}

void BlockFile::check_request(std::int64_t block, std::span<const std::byte> bytes) const
{
  check(id_ >= 0, fmt::format("{} is closed", name_));
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
  check(fstat(id_, &status) == 0 && status.st_nlink > 0, fmt::format("{} is gone: it was removed", name_));
}

void BlockFile::write(std::int64_t block, std::span<const std::byte> bytes)
{
  check_request(block, bytes);
  check(writable_, fmt::format("{} was opened for reading only", name_));
  Checksum& checksum = checksums_[static_cast<std::size_t>(block)];
  checksum = {};
  const std::uint64_t value = fast_hash(bytes);
  const std::string wrong = write_all(id_, block * block_bytes_, bytes, piece_bytes());
  check(wrong.empty(), fmt::format("{} cannot be written: {}", place_of(block), wrong));
  checksum = {value, 1};
}

void BlockFile::read(std::int64_t block, std::span<std::byte> bytes)
{
  check_request(block, bytes);
  const Checksum& checksum = checksums_[static_cast<std::size_t>(block)];
  check(checksum.written == 1, fmt::format("{} cannot be read: it was never written", place_of(block)));
  const std::string wrong = read_all(id_, block * block_bytes_, bytes, piece_bytes());
  check(wrong.empty(), fmt::format("{} cannot be read: {}", place_of(block), wrong));
  const std::uint64_t value = fast_hash(bytes);
  check(value == checksum.value,
        fmt::format("{} is damaged: its checksum is {:016x}, and it was written with {:016x}", place_of(block),
                    value, checksum.value));
}

// ---- Files that are kept --------------------------------------------------------------------------------------------

std::int64_t BlockFile::checksums_bytes() const
{
  return rounded_up(blocks() * static_cast<std::int64_t>(sizeof(Checksum)) +
                    static_cast<std::int64_t>(sizeof(Footer)));
}

void BlockFile::write_checksums() const
{
  const AlignedBytes table(checksums_bytes());
  const std::size_t footer_at = table.all().size() - sizeof(Footer);
  std::memcpy(table.all().data(), checksums_.data(), checksums_.size() * sizeof(Checksum));
  Footer footer{magic, rank_, blocks(), block_bytes_, 0};
  std::memcpy(&table.all()[footer_at], &footer, sizeof(Footer));
  footer.checksum = fast_hash(table.all().first(table.all().size() - sizeof(footer.checksum)));
  std::memcpy(&table.all()[footer_at], &footer, sizeof(Footer));
  const std::string wrong = write_all(id_, blocks() * block_bytes_, table.all(), piece_bytes());
  check(wrong.empty(), fmt::format("{}: the checksums cannot be written: {}", name_, wrong));
  check_call(fsync(id_) == 0, fmt::format("{} cannot be completed", name_));
}

void BlockFile::read_checksums()
{
  const auto expect = [&](bool holds) {
    check(holds, fmt::format("{} cannot be used: it is no file that rank {} kept and closed, or it is damaged",
                             name_, rank_));
  };
  const std::int64_t length = lseek(id_, 0, SEEK_END), footer_bytes = sizeof(Footer);
  Footer footer{};
  expect(length >= footer_bytes &&
         read_all(id_, length - footer_bytes, std::as_writable_bytes(std::span(&footer, 1)), 1).empty());
  // Numbers that do not match the length are garbage, and their product might overflow.
  expect(footer.magic == magic && footer.rank == rank_ && footer.blocks >= 1 &&
         footer.block_bytes >= disk_alignment && footer.blocks <= length / footer.block_bytes);
  block_bytes_ = footer.block_bytes;
  checksums_.resize(static_cast<std::size_t>(footer.blocks));
  expect(length == blocks() * block_bytes_ + checksums_bytes());
  const AlignedBytes table(checksums_bytes());
  expect(read_all(id_, blocks() * block_bytes_, table.all(), 1).empty());
  expect(fast_hash(table.all().first(table.all().size() - sizeof(footer.checksum))) == footer.checksum);
  std::memcpy(checksums_.data(), table.all().data(), checksums_.size() * sizeof(Checksum));
}

void BlockFile::close()
{
  if (id_ < 0) return;
  if (keep_ && writable_) {
    check_there();
    write_checksums();
  }
  check_call(::close(std::exchange(id_, -1)) == 0, fmt::format("{} cannot be closed", name_));
}

}  // namespace rankwise
