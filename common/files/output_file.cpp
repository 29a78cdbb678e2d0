#include "common/files/output_file.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <random>
#include <system_error>
#include <unistd.h>
#include <xxhash.h>

#include <fmt/format.h>
#include <sys/stat.h>
#ifdef __linux__
#include <linux/limits.h>
#include <sys/xattr.h>
#endif

#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace fs = std::filesystem;

namespace {

constexpr int most_links = 40;  // the limit of Linux
constexpr std::size_t job_digits = 16;
constexpr std::string_view suffix = ".tmp";

std::uint64_t random_number()
{
  std::random_device draw;
  return std::uint64_t{draw()} << 32 | draw();
}

std::atomic<std::uint64_t>& job_number()
{
  static std::atomic<std::uint64_t> number = random_number();
  return number;
}

/// Rejects a path with a link of another user in a folder where everybody may make links: its owner would choose the file that
/// is written.
void check_links(const fs::path& path)
{
  for (fs::path name = path; name.has_relative_path(); name = name.parent_path()) {
    struct stat link {
    }, folder{};
    if (lstat(name.c_str(), &link) == 0 && S_ISLNK(link.st_mode) &&
        stat(name.parent_path().c_str(), &folder) == 0 && (folder.st_mode & S_IWOTH) != 0 &&
        link.st_uid != geteuid() && link.st_uid != folder.st_uid)
      throw UserError(
          fmt::format("{} is a link of another user.", name.string()),
          "Everybody can write to its folder, so it may lead anywhere. Name a file in a folder of your own.");
  }
}

/// Calls @p visit(name) for an absolute path and for the target of each link in the chain; ends at the last link, or when @p
/// visit returns false.
template <class Visit>
void follow_links(const fs::path& path, const Visit& visit)
{
  fs::path target = path;
  std::error_code error;
  for (int links = 0;; ++links) {
    check_links(target);
    if (!visit(target) || !fs::is_symlink(fs::symlink_status(target, error))) return;
    if (links == most_links)
      throw UserError(fmt::format("{} is a cyclic symbolic link.", path.string()),
                      "Each link leads to another one. Name a file, or repair the links.");
    const fs::path next = fs::read_symlink(target, error);
    target = target.parent_path() / next;  // an absolute path replaces it completely
  }
}

/// Flushes a rename in the folder of @p path to the disk.
void sync_folder(const std::string& path)
{
  const Descriptor folder(fs::path(path).parent_path().string(), O_RDONLY | O_DIRECTORY);
  check_system(folder.good() && fsync(folder.id()) == 0, "flush the folder of " + path + " to the disk");
}

}  // namespace

// ---- Names ------------------------------------------------------------------------------------------------------------

std::string resolve_links(const std::string& path)
{
  std::error_code error;
  fs::path target;
  follow_links(fs::absolute(path, error), [&](const fs::path& name) {
    target = name;
    return true;
  });
  const fs::path folder = fs::weakly_canonical(target.parent_path(), error);
  return error ? target.string() : (folder / target.filename()).string();
}

bool is_stream(const std::string& path)
{
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) return true;
  bool open_here = false;  // a link of /proc/self/fd
  follow_links(fs::absolute(path, error), [&](const fs::path& name) {
    open_here = name.string().starts_with("/proc/");
    return !open_here;
  });
  return open_here;
}

std::size_t longest_name(const std::string& folder)
{
  const long most = pathconf(folder.c_str(), _PC_NAME_MAX);
  return most > 0 ? static_cast<std::size_t>(most) : NAME_MAX;
}

std::string name_beside(const std::string& path, std::string_view before, std::string_view after)
{
  const fs::path target = resolve_links(path), folder = target.parent_path();
  std::string name = target.filename().string();
  const std::size_t room = longest_name(folder.string()) - before.size() - after.size();
  if (name.size() > room) {
    const std::string digest = fmt::format("~{:016x}", XXH3_64bits(name.data(), name.size()));
    name = name.substr(0, room - digest.size()) + digest;
  }
  return (folder / fmt::format("{}{}{}", before, name, after)).string();
}

std::string temporary_name(const std::string& path)
{
  return name_beside(path, "", fmt::format(".{:0{}x}{}", job_number().load(), job_digits, suffix));
}

bool is_temporary_of(const std::string& path, const std::string& target)
{
  // Names first: they tell most files apart without a look at them.
  const fs::path other = temporary_name(target);
  const std::string name = fs::path(path).filename().string(), like = other.filename().string();
  const std::size_t digits_at = like.size() - suffix.size() - job_digits;
  if (name.size() != like.size() || !name.starts_with(like.substr(0, digits_at)) || !name.ends_with(suffix))
    return false;
  const std::string digits = name.substr(digits_at, job_digits);
  std::error_code error;
  return std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c) != 0; }) &&
         fs::equivalent(fs::absolute(path).parent_path(), other.parent_path(), error);
}

void set_job_number(std::uint64_t number)
{
  job_number() = number;
}

// ---- Temporary files ----------------------------------------------------------------------------------------------------

namespace {

/// Gives the open file the access list and the users' attributes of @p path. @return  true if it has them; else
/// errno says why not.
bool copy_attributes([[maybe_unused]] const Descriptor& file, [[maybe_unused]] const std::string& path)
{
#ifdef __linux__
  std::string names(XATTR_LIST_MAX, '\0'), value(XATTR_SIZE_MAX, '\0');
  const ssize_t length = listxattr(path.c_str(), names.data(), names.size());
  if (length < 0) return errno == ENOTSUP;
  names.resize(static_cast<std::size_t>(length));
  for (const std::string& name : split(names, '\0')) {
    if (!name.starts_with("user.") && name != "system.posix_acl_access") continue;
    const ssize_t size = getxattr(path.c_str(), name.c_str(), value.data(), value.size());
    if (size < 0 || fsetxattr(file.id(), name.c_str(), value.data(), static_cast<std::size_t>(size), 0) != 0)
      return false;
  }
#endif
  return true;
}

}  // namespace

bool copy_owner_and_mode(const Descriptor& file, const std::string& path)
{
  struct stat old {
  }, own{};
  if (stat(path.c_str(), &old) != 0) return true;
  if (fstat(file.id(), &own) != 0) return false;
  const bool same_owner = own.st_uid == old.st_uid && own.st_gid == old.st_gid;
  return (same_owner || fchown(file.id(), old.st_uid, old.st_gid) == 0) &&
         fchmod(file.id(), old.st_mode & 07777) == 0 && copy_attributes(file, path);
}

namespace {

/// Creates and opens the temporary file of @p path.
Descriptor open_temporary(const std::string& path)
{
  const std::string temporary = temporary_name(path);
  const mode_t mode = fs::exists(path) ? 0600 : 0666;  // closed to others until it has the old file's owner
  Descriptor file(temporary, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY, mode);
  check_system(file.good(), "create " + temporary);
  or_remove_temporary(path, [&] {
    check_system(copy_owner_and_mode(file, path),
                 fmt::format("give {} the owner, permissions and attributes of {}", temporary, path));
  });
  return file;
}

}  // namespace

void create_temporary(const std::string& path)
{
  Descriptor file = open_temporary(path);
  or_remove_temporary(path, [&] { check_system(file.close(), "create " + temporary_name(path)); });
}

void commit_temporary(const std::string& path)
{
  const std::string target = resolve_links(path), temporary = temporary_name(path);
  or_remove_temporary(path, [&] {
    check_system(std::rename(temporary.c_str(), target.c_str()) == 0,
                 fmt::format("rename {} to {}", temporary, target));
  });
  sync_folder(target);
}

void remove_temporary(const std::string& path)
{
  std::remove(temporary_name(path).c_str());
}

void or_remove_temporary(const std::string& path, const std::function<void()>& work)
{
  try {
    work();
  } catch (...) {
    remove_temporary(path);
    throw;
  }
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)), file_(open_temporary(path_)) {}

OutputFile::~OutputFile()
{
  if (!kept_) remove_temporary(path_);
}

void OutputFile::write(std::span<const std::byte> bytes)
{
  check_system(write_all(file_, bytes), "write " + path_);
}

void OutputFile::keep()
{
  if (file_.good()) check_system(fsync(file_.id()) == 0 && file_.close(), "write " + path_);
  kept_ = true;
}

void OutputFile::commit()
{
  keep();
  commit_temporary(path_);
}

void write_file(const std::string& path, std::string_view content)
{
  if (is_stream(path)) {
    AppendedFile stream(path);
    stream.add(content);
    return stream.close();
  }
  OutputFile file(path);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

namespace {

/// Opens a file to add to it. For a reader of a pipe it waits a minute.
Descriptor open_to_append(const std::string& path)
{
  std::error_code error;
  const bool pipe = fs::is_fifo(path, error);
  const auto open = [&] {
    return Descriptor(path, O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY | (pipe ? O_NONBLOCK : 0));
  };
  Descriptor file = open();
  constexpr timespec nap{0, 100'000'000};
  for (int naps = 0; pipe && !file.good() && errno == ENXIO; ++naps) {
    const bool signalled = naps > 0 && nanosleep(&nap, nullptr) != 0;
    check(naps < 600 && !signalled, fmt::format("cannot write to {}: no program has opened this pipe to read {}",
                                                path, signalled ? "before a signal came" : "for a minute"));
    file = open();
  }
  check_system(file.good() && (!pipe || fcntl(file.id(), F_SETFL, O_APPEND) == 0), "write to " + path);
  return file;
}

}  // namespace

AppendedFile::AppendedFile(std::string path) : path_(std::move(path)), stays_open_(is_stream(path_)) {}

void AppendedFile::add(std::string_view content)
{
  if (!file_.good()) file_ = open_to_append(path_);
  check_system(write_all(file_, std::as_bytes(std::span(content))), "write to " + path_);
  if (!stays_open_) close();
}

void AppendedFile::close()
{
  check_system(!file_.good() || file_.close(), "write to " + path_);
}

}  // namespace rankwise
