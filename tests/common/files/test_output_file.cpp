// common/files/output_file.hpp and common/files/file_lock.hpp: a file has its old content or its new one, and one job at a time writes it.

#include <algorithm>
#include <array>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <string>
#include <unistd.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "common/base/error.hpp"
#include "common/files/file_lock.hpp"
#include "common/files/output_file.hpp"
#include "tests/catch.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;
namespace fs = std::filesystem;

namespace {

/// Limits the size of files that this process writes, in bytes, as long as it lives.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes)
  {
    std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

std::span<const std::byte> bytes_of(const std::string& text)
{
  return std::as_bytes(std::span(text));
}

/// Calls @p work in a child process, which then ends without cleaning up; returns its exit status.
int in_another_process(const std::function<int()>& work)
{
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("write_file: replaces the old content as a whole, or leaves it alone")
{
  const ScratchFolder folder;
  const std::string path = folder / "file";
  write_file(path, "first");
  write_file(path, "second\n");
  CHECK(read_file(path) == "second\n");
  CHECK_THROWS_AS(write_file(folder / "missing/file", "x"), Error);
  CHECK_THROWS_WITH(write_file(folder / "missing/file", "x"), Contains("No such file"));
  {
    const SmallFiles limit(10);
    CHECK_THROWS_WITH(write_file(path, "more than ten bytes"), Contains("File too large") && Contains(path));
  }
  CHECK(read_file(path) == "second\n");

  // A folder cannot be replaced by a file; the temporary file is removed.
  fs::create_directory(folder / "folder");
  CHECK_THROWS_WITH(write_file(folder / "folder", "x"), Contains("Is a directory"));
  CHECK(folder.files() == 2);
}

TEST_CASE("OutputFile: without commit() the existing file is kept")
{
  const ScratchFolder folder;
  write_file(folder / "file", "old");
  {
    OutputFile file(folder / "file");
    file.write(bytes_of("ne"));
    CHECK(read_file(folder / "file") == "old");
    CHECK(read_file(temporary_name(folder / "file")) == "ne");
  }
  CHECK(read_file(folder / "file") == "old");
  CHECK(folder.files() == 1);
  OutputFile file(folder / "file");
  file.write(bytes_of("n"));
  file.write(bytes_of("ew"));
  file.commit();
  CHECK(read_file(folder / "file") == "new");
  CHECK(folder.files() == 1);
}

TEST_CASE("write_file: a symbolic link is kept, and its target is replaced")
{
  const ScratchFolder folder;
  fs::create_directory(folder / "there");
  fs::create_symlink("there/file", folder / "link");
  fs::create_symlink(folder / "link", folder / "link to link");
  for (const std::string content : {"new", "newer"}) {  // the first time nothing is there
    write_file(folder / "link to link", content);
    CHECK(fs::is_symlink(folder / "link"));
    CHECK(fs::is_symlink(folder / "link to link"));
    CHECK(read_file(folder / "there/file") == content);
  }
  CHECK(temporary_name(folder / "link") == temporary_name(folder / "there/file"));
}

TEST_CASE("write_file: the new file has the access list and the users' attributes of the old one")
{
  // Version 2 of a list: tag, permissions and number of the owner, a further user, the group, the mask and all others.
  const auto entry = [](char tag, char permissions, const std::string& number) {
    return std::string{tag, 0, permissions, 0} + number;
  };
  const std::string none(4, '\xFF'), list = std::string("\2\0\0\0", 4) + entry(1, 6, none) +
                                            entry(2, 4, std::string("\x39\x30\0\0", 4)) + entry(4, 0, none) +
                                            entry(16, 4, none) + entry(32, 0, none);
  const ScratchFolder folder;
  const std::string path = folder / "file";
  write_file(path, "old");
  for (const auto& [name, value] :
       {std::pair("user.origin", std::string("a lab")), {"system.posix_acl_access", list}}) {
    if (setxattr(path.c_str(), name, value.data(), value.size(), 0) != 0) continue;  // not in every file system
    write_file(path, "new");
    std::string kept(100, '\0');
    kept.resize(
        static_cast<std::size_t>(std::max<ssize_t>(getxattr(path.c_str(), name, kept.data(), kept.size()), 0)));
    CHECK((kept == value));
  }
  CHECK(read_file(path) == "new");
}

TEST_CASE("links that never end are refused")
{
  const ScratchFolder folder;
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  CHECK_THROWS_AS(resolve_links(folder / "a"), UserError);
  CHECK_THROWS_WITH(write_file(folder / "a", "x"), Contains("/a is a cyclic symbolic link"));
}

TEST_CASE("create_temporary: an existing file of that name is not touched")
{
  const ScratchFolder folder;
  const std::string path = folder / "file", temporary = temporary_name(path);
  make_file(folder / "other", "precious");
  fs::create_symlink(folder / "other", temporary);
  CHECK_THROWS_WITH(create_temporary(path), Contains("File exists"));
  CHECK(read_file(folder / "other") == "precious");
  fs::remove(temporary);
  REQUIRE(mkfifo(temporary.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(create_temporary(path), Contains("File exists"));  // and does not wait for a reader
}

TEST_CASE("temporary_name: one for all ranks of a job, and another one for each job")
{
  const ScratchFolder folder;
  const std::string path = folder / "file", first = temporary_name(path);
  CHECK(first == temporary_name(path));
  CHECK(fs::path(first).parent_path() == fs::canonical(fs::path(path).parent_path()));
  CHECK(is_temporary_of(first, path));
  set_job_number(0xABC);
  CHECK(temporary_name(path).ends_with("/file.0000000000000abc.tmp"));
  CHECK(is_temporary_of(first, path));
  CHECK_FALSE(is_temporary_of(path + ".tmp", path));
  CHECK_FALSE(is_temporary_of(path + ".000000000000xxxx.tmp", path));
  CHECK_FALSE(is_temporary_of(first, folder / "file2"));
}

TEST_CASE("is_stream: devices, pipes and open files, which are written to and never replaced")
{
  const ScratchFolder folder;
  CHECK_FALSE(is_stream(folder / "new"));
  CHECK_FALSE(is_stream(folder / ""));
  CHECK(is_stream("/dev/null"));
  fs::create_symlink("/dev/null", folder / "null");
  CHECK(is_stream(folder / "null"));
  CHECK(is_stream("/dev/stdout"));

  write_file("/dev/null", "x");
  write_file(folder / "null", "x");
  CHECK(fs::is_character_file("/dev/null"));
  if (fs::exists("/dev/full")) CHECK_THROWS_WITH(write_file("/dev/full", "x"), Contains("No space left"));

  make_file(folder / "open", "begun, ");
  const Descriptor open(folder / "open", O_WRONLY);
  const std::string name = "/proc/self/fd/" + std::to_string(open.id());
  if (!fs::exists(name)) return;  // no /proc here
  CHECK(is_stream(name));
  write_file(name, "and gone on with");
  CHECK(read_file(folder / "open") == "begun, and gone on with");
}

TEST_CASE("FileLock: a second process is refused with the holder's name; the lock ends with its process")
{
  const ScratchFolder folder;
  const std::string path = folder / "file";
  std::array<char, 256> host{};
  REQUIRE(gethostname(host.data(), host.size() - 1) == 0);
  const std::string holder = "process " + std::to_string(getpid()) + " on " + host.data();
  const auto lock_elsewhere = [&](const std::string& name) {
    return in_another_process([&] {
      try {
        const FileLock lock(name, "--checkpoint=file");
        return 0;
      } catch (const UserError& error) {
        return std::string(error.what()).find("--checkpoint=file is being written by " + holder) ==
                       std::string::npos
                   ? 1
                   : 2;
      }
    });
  };
  {
    const FileLock lock(path, "--checkpoint=file");
    CHECK(lock_elsewhere(path) == 2);
    fs::create_symlink("file", folder / "link");
    CHECK(lock_elsewhere(folder / "link") == 2);
    fs::remove(folder / "link");
    CHECK(lock_elsewhere(folder / "other") == 0);
  }
  CHECK(folder.files() == 0);
  CHECK(lock_elsewhere(path) == 0);

  const int killed = in_another_process([&]() -> int {
    const FileLock lock(path, "");
    create_temporary(path);
    _exit(7);
  });
  CHECK(killed == 7);
  CHECK(folder.files() == 2);
  make_file(path + ".0123456789abcdef.tmp", "left over by another job");
  make_file(path + ".mine.tmp", "somebody's");
  {
    const FileLock lock(path, "");
    CHECK(folder.files() == 2);
    CHECK(read_file(path + ".mine.tmp") == "somebody's");
  }
  CHECK(folder.files() == 1);
}

TEST_CASE("FileLock: no lock file can be made")
{
  CHECK_THROWS_AS(FileLock("/nowhere/file", "--report=/nowhere/file"), UserError);
  CHECK_THROWS_WITH(FileLock("/nowhere/file", "--report=/nowhere/file"),
                    Contains("--report=/nowhere/file cannot be written"));
}
