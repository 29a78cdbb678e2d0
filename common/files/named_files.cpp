#include "common/files/named_files.hpp"

#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <filesystem>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include "common/base/error.hpp"
#include "common/files/output_file.hpp"
#include "common/files/sealed_file.hpp"

namespace rankwise {

namespace fs = std::filesystem;

namespace {

/// Rejects a file that cannot be written.
void check_writable(const NamedFile& file)
{
  const std::string asked = file.asked + " cannot be written";
  std::error_code ignored;
  if (fs::is_directory(file.path, ignored) || !fs::path(file.path).has_filename())
    throw UserError(asked + ": it names a folder.",
                    fmt::format("Name a file in it: {}{}NAME.", file.asked, file.asked.ends_with('/') ? "" : "/"));
  if (is_stream(file.path)) {
    if (file.use == FileUse::print) return;
    throw UserError(asked + ": it is a device or a pipe, not a file that could be replaced.", "Name a file.");
  }
  const fs::path target = resolve_links(file.path), folder = target.parent_path();
  if (!fs::is_directory(folder, ignored))
    throw UserError(fmt::format("{}: there is no folder {}.", asked, folder.string()),
                    "Create the folder first, or name another one.");
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    throw UserError(fmt::format("{}: {}.", asked, system_error()),
                    fmt::format("Files are created in the folder {}; choose a writable one.", folder.string()));
  const std::size_t bytes = target.filename().string().size(), most = longest_name(folder.string());
  if (bytes > most || temporary_name(file.path).size() >= PATH_MAX)
    throw UserError(fmt::format("{}: its name is too long.", asked),
                    fmt::format("A name may have {} bytes there, and a whole path {}.", most, PATH_MAX - 1));
  struct stat old {};
  if (stat(file.path.c_str(), &old) == 0 &&
      ((old.st_mode & 0222) == 0 || (!Descriptor(file.path, O_WRONLY).good() && errno != ETXTBSY)))
    throw UserError(fmt::format("{}: it is write-protected.", asked),
                    "Name another file, or allow it first, with chmod u+w or chattr -ai.");
}

/// Rejects an output that would replace a program, or a sealed file of another kind.
void check_replaced(const NamedFile& file)
{
  const std::string there = kind_of_file(file.path);
  if (!there.empty() && there != file.kind)
    throw UserError(fmt::format("{} would replace a file of another kind: {}.", file.asked, there),
                    "Name another file, or remove that one first.");
}

bool is_same_file(const NamedFile& a, const NamedFile& b)
{
  std::error_code error;
  return resolve_links(a.path) == resolve_links(b.path) || fs::equivalent(a.path, b.path, error);
}

/// Rejects two files if writing the first would affect the second.
void check_distinct(const NamedFile& written, const NamedFile& other)
{
  if (written.use == FileUse::read || is_stream(written.path)) return;
  if (is_same_file(written, other))
    throw UserError(written.asked == other.asked
                        ? fmt::format("{} would replace itself.", written.asked)
                        : fmt::format("{} and {} are the same file.", written.asked, other.asked),
                    other.use == FileUse::read ? "The output would replace the input. Name another file."
                                               : "One would replace the other. Name two files.");
  if (is_temporary_of(resolve_links(other.path), written.path))
    throw UserError(fmt::format("{} is a temporary file of {}.", other.asked, written.asked),
                    "It would be removed as a leftover. Rename it first.");
}

}  // namespace

void check_files(std::span<const NamedFile> files)
{
  for (const NamedFile& file : files)
    if (file.use != FileUse::read) check_writable(file);
  for (const NamedFile& a : files)
    for (const NamedFile& b : files)
      if (&a != &b) check_distinct(a, b);
  for (const NamedFile& file : files)
    if (file.use != FileUse::read) check_replaced(file);
}

std::vector<FileLock> lock_files(std::span<const NamedFile> files)
{
  std::vector<FileLock> locks;
  for (const NamedFile& file : files)
    if (file.use != FileUse::read && !is_stream(file.path)) locks.emplace_back(file.path, file.asked);
  return locks;
}

}  // namespace rankwise
