// common/files/named_files.hpp: no file that a user named overwrites another one.

#include <fcntl.h>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "common/base/error.hpp"
#include "common/files/descriptor.hpp"
#include "common/files/named_files.hpp"
#include "common/files/output_file.hpp"
#include "common/files/sealed_file.hpp"
#include "tests/catch.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;
namespace fs = std::filesystem;

namespace {

/// The message of check_files(); "accepted" if there is none.
std::string refusal(const std::vector<NamedFile>& files)
{
  try {
    check_files(files);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

NamedFile report(const std::string& path)
{
  return {path, "--report=" + path, FileUse::print};
}

NamedFile checkpoint(const std::string& path)
{
  return {path, "--checkpoint=" + path, FileUse::replace};
}

NamedFile data(const std::string& path)
{
  return {path, "--data=" + path, FileUse::read};
}

}  // namespace

TEST_CASE("check_files: says what is wrong with a path, and changes nothing")
{
  const ScratchFolder folder;
  make_file(folder / "old.json", "old");
  const std::string root = fs::canonical(folder / "");
  CHECK(refusal({report(root + "/new.json")}) == "accepted");
  CHECK(refusal({report(root + "/old.json")}) == "accepted");
  CHECK(refusal({report("new.json")}) == "accepted");
  CHECK(refusal({report(root + "/missing/run.json")}) ==
        "error: --report=" + root + "/missing/run.json cannot be written: there is no folder " + root +
            "/missing.\n       Create the folder first, or name another one.");
  CHECK_THAT(refusal({report(root)}), Contains("it names a folder") && Contains("--report=" + root + "/NAME"));
  CHECK_THAT(refusal({report(root + "/")}),
             Contains("it names a folder") && Contains("--report=" + root + "/NAME"));
  CHECK_THAT(refusal({report(root + "/missing/")}), Contains("it names a folder"));
  CHECK_THAT(refusal({report(root + "/old.json/run.json")}), Contains("there is no folder"));
  CHECK(read_file(folder / "old.json") == "old");
  CHECK(folder.files() == 1);
  fs::create_symlink(std::string(256, 'x'), folder / "link");
  CHECK_THAT(refusal({report(folder / "link")}), Contains("its name is too long"));
}

TEST_CASE("check_files: a file that may only be added to cannot be replaced")
{
  const ScratchFolder folder;
  make_file(folder / "run.json", "old");
  const Descriptor file(folder / "run.json", O_RDONLY);
  int before = 0;
  if (ioctl(file.id(), FS_IOC_GETFLAGS, &before) != 0) return;  // not in every file system
  const int only_added_to = before | FS_APPEND_FL;
  if (ioctl(file.id(), FS_IOC_SETFLAGS, &only_added_to) != 0) return;  // root alone may
  CHECK_THAT(refusal({report(folder / "run.json")}), Contains("it is write-protected") && Contains("chattr -ai"));
  REQUIRE(ioctl(file.id(), FS_IOC_SETFLAGS, &before) == 0);
}

TEST_CASE("check_files: a device or a pipe may receive a report, but no checkpoint")
{
  const ScratchFolder folder;
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::string& path : {std::string("/dev/null"), folder / "pipe"}) {
    CHECK(refusal({report(path)}) == "accepted");
    CHECK_THAT(refusal({checkpoint(path)}),
               Contains("--checkpoint=" + path + " cannot be written: it is a device or a pipe"));
    CHECK(refusal({report(path), {path, "--trace=" + path, FileUse::print}}) == "accepted");
  }
}

TEST_CASE("check_files: no output replaces a program or a sealed file of another kind")
{
  const ScratchFolder folder;
  const std::string sealed = folder / "run.h5", program = folder / "program", text = folder / "run.json";
  create_temporary(sealed);
  fs::resize_file(temporary_name(sealed), seal_bytes);
  commit_sealed(sealed, {.name = "rankwise checkpoint", .called = "a checkpoint"});
  fs::copy_file("/proc/self/exe", program);
  make_file(text, "{}");
  NamedFile again = checkpoint(sealed), record = again;
  again.kind = "rankwise checkpoint";
  record.kind = "rankwise record";
  CHECK(refusal({again}) == "accepted");
  CHECK(refusal({report(text)}) == "accepted");
  CHECK_THAT(refusal({record}), Contains("another kind: rankwise checkpoint"));
  CHECK_THAT(refusal({report(sealed)}), Contains("another kind: rankwise checkpoint"));
  CHECK_THAT(refusal({report(program)}), Contains("another kind: a program"));
}

TEST_CASE("check_files: links of another user are refused where everybody may make them")
{
  if (geteuid() != 0) return;  // only root can give a link away
  const ScratchFolder folder;
  const fs::path shared = folder / "shared";
  fs::create_directory(shared);
  fs::create_symlink(folder / "file", shared / "link");
  fs::create_symlink(folder / "", shared / "folder");
  for (const char* const name : {"link", "folder"}) REQUIRE(lchown((shared / name).c_str(), 12345, 12345) == 0);
  for (const char* const name : {"link", "folder/file"}) {
    fs::permissions(shared, fs::perms(01777));
    CHECK_THAT(refusal({report(shared / name)}), Contains("is a link of another user"));
    CHECK_THROWS_WITH(write_file(shared / name, "x"), Contains("is a link of another user"));
    fs::permissions(shared, fs::perms(0755));  // only its owner can make links in it
    CHECK(refusal({report(shared / name)}) == "accepted");
  }
}

TEST_CASE("check_files: cyclic links are refused")
{
  const ScratchFolder folder;
  fs::create_symlink("loop", folder / "loop");
  for (const NamedFile& file : {report(folder / "loop"), checkpoint(folder / "loop")})
    CHECK_THAT(refusal({file}), Contains("is a cyclic symbolic link"));
}

TEST_CASE("check_files: two names of one file are refused if one of them is written")
{
  const ScratchFolder folder;
  const std::string file = folder / "file";
  make_file(file, "content");
  fs::create_symlink("file", folder / "link");
  fs::create_hard_link(file, folder / "twin");
  for (const std::string& name : {file, folder / "link", folder / "twin", folder / "./file"}) {
    CHECK_THAT(refusal({checkpoint(file), report(name)}),
               Contains("--checkpoint=" + file + " and --report=" + name));
    CHECK_THAT(refusal({report(name), checkpoint(file)}), Contains("are the same file"));
    CHECK_THAT(refusal({data(name), checkpoint(file)}), Contains("would replace the input"));
    CHECK(refusal({data(name), data(file)}) == "accepted");
  }
  CHECK_THAT(refusal({checkpoint(folder / "new"), report(folder / "new")}), Contains("are the same file"));
  CHECK(refusal({checkpoint(folder / "new"), report(folder / "newer"), data(file)}) == "accepted");
}

TEST_CASE("check_files: an input file is not removed as a leftover temporary file")
{
  const ScratchFolder folder;
  const std::string left = folder / "file.0123456789abcdef.tmp";
  CHECK_THAT(refusal({data(left), checkpoint(folder / "file")}), Contains("is a temporary file of --checkpoint="));
  CHECK(refusal({data(left), checkpoint(folder / "other")}) == "accepted");
  CHECK(refusal({data(folder / "file.tmp"), checkpoint(folder / "file")}) == "accepted");
}

TEST_CASE("lock_files: locks the files that are written, but no streams")
{
  const ScratchFolder folder;
  {
    const std::vector<FileLock> locks = lock_files(std::vector<NamedFile>{
        data(folder / "a"), checkpoint(folder / "b"), report(folder / "c"), report("/dev/null")});
    CHECK(locks.size() == 2);
    CHECK(folder.files() == 2);
  }
  CHECK(folder.files() == 0);
}
