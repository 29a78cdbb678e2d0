#include "common/files/file_lock.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/output_file.hpp"

namespace rankwise {

namespace fs = std::filesystem;

namespace {

/// Name of this process in its lock file.
std::string own_name()
{
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {"this machine"};
  return fmt::format("process {} on {}", getpid(), host.data());
}

/// Name of the lock's holder, from its file.
std::string holder(const Descriptor& file)
{
  std::array<char, 512> text{};
  const std::int64_t count = read_at(file, 0, std::as_writable_bytes(std::span(text)));
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : "another process";
}

/// True if the open file still has its name: a holder that ends removes it while others may be waiting.
bool has_name(const Descriptor& file, const std::string& name)
{
  struct stat open {
  }, named{};
  return fstat(file.id(), &open) == 0 && stat(name.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

[[noreturn]] void refuse(const std::string& asked, const std::string& reason, const std::string& lock)
{
  throw UserError(
      fmt::format("{} cannot be written: {}.", asked, reason),
      fmt::format("Its lock file {} is created first, and given the owner, permissions and attributes of the old "
                  "file, if there is one.\n"
                  "Choose a writable folder with free space, or another name.",
                  lock));
}

void remove_stale_temporaries(const std::string& path)
{
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(resolve_links(path)).parent_path(), error))
    if (is_temporary_of(entry.path(), path) && !entry.is_symlink(error)) fs::remove(entry.path(), error);
}

}  // namespace

FileLock::FileLock(const std::string& path, const std::string& asked) : name_(name_beside(path, ".", ".lock"))
{
  while (true) {
    Descriptor file(name_, O_CREAT | O_RDWR | O_NOFOLLOW);
    if (!file.good()) refuse(asked, system_error(), name_);
    if (flock(file.id(), LOCK_EX | LOCK_NB) == 0) {
      if (!has_name(file, name_)) continue;
      file_ = std::move(file);
      break;
    }
    if (errno == EWOULDBLOCK)
      throw UserError(
          fmt::format("{} is being written by {}.", asked, holder(file)),
          "Two jobs would replace each other's file. Wait until that one has ended, or name another file.");
    print_text(stderr, fmt::format("warning: {} cannot be locked: {}. Make sure that no other job writes it.\n",
                                   asked, system_error()));
    std::remove(name_.c_str());
    return;
  }
  remove_stale_temporaries(path);
  const std::string name = own_name();
  // If the lock file cannot have the owner of the file, neither can the file that replaces it.
  if (copy_owner_and_mode(file_, path) && ftruncate(file_.id(), 0) == 0 &&
      write_all(file_, std::as_bytes(std::span(name))))
    return;
  const std::string reason = system_error();
  std::remove(name_.c_str());
  refuse(asked, reason, name_);
}

FileLock::~FileLock()
{
  if (file_.good()) std::remove(name_.c_str());
}

}  // namespace rankwise
