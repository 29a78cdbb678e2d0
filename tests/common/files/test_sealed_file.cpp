// common/files/sealed_file.hpp: a sealed file is complete, of its kind and version; other files are refused by name.

#include <filesystem>
#include <set>
#include <string>
#include <unistd.h>

#include <sys/stat.h>

#include "common/base/activity.hpp"
#include "common/base/error.hpp"
#include "common/files/sealed_file.hpp"
#include "tests/catch.hpp"
#include "tests/fuzz.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

constexpr FileKind kind{.name = "rankwise test", .version = 3, .called = "a test file"};

/// A sealed file of @p content.
void write_sealed(const std::string& path, const std::string& content, const FileKind& of = kind)
{
  create_temporary(path);
  make_file(temporary_name(path), std::string(seal_bytes, '\0') + content);
  commit_sealed(path, of);
}

void check_it(const std::string& path)
{
  check_seal(path, kind, {.asked = "--file=" + path, .remedy = "Make it again."});
}

void check_refused(const std::string& path, const std::string& words)
{
  CHECK_THROWS_AS(check_it(path), UserError);
  CHECK_THROWS_WITH(check_it(path),
                    Contains("--file=" + path + " ") && Contains(words) && Contains("Make it again."));
}

}  // namespace

TEST_CASE("sealed file: passes the check, and its content is unchanged")
{
  const ScratchFolder folder;
  for (const std::size_t size : {0UL, 1UL, 511UL, 1UL << 20, (1UL << 20) + 1}) {
    const std::string path = folder / "file", content(size, 'x');
    write_sealed(path, content);
    CHECK_NOTHROW(check_it(path));
    CHECK((read_file(path).substr(seal_bytes) == content));
    CHECK(folder.files() == 1);
  }
}

TEST_CASE("sealed file: each block that is read for the digest is progress")
{
  const ScratchFolder folder;
  write_sealed(folder / "file", std::string(3 << 20, 'x'));
  const std::uint64_t before = current_activity().finished;
  check_it(folder / "file");
  CHECK(current_activity().finished >= before + 3);
}

TEST_CASE("sealed file: the first bytes say what it is, in the documented places")
{
  const ScratchFolder folder;
  write_sealed(folder / "file", "content");
  const std::string seal = read_file(folder / "file").substr(0, seal_bytes);
  CHECK(seal.substr(0, 13) == "\x89RANKWISE\r\n\x1a\n");
  CHECK(seal.substr(16, 14) == std::string("rankwise test\0", 14));
  CHECK(seal.substr(48, 8) == std::string("\3\0\0\0\0\0\0\0", 8));
  CHECK(seal.substr(56, 8) == std::string("\7\2\0\0\0\0\0\0", 8));  // 519
  CHECK(seal.substr(80, 416) == std::string(416, '\0'));
}

TEST_CASE("check_seal: refuses paths that are not files, and unreadable files")
{
  const ScratchFolder folder;
  check_refused(folder / "missing", "does not exist");
  check_refused(folder / ".", "is a folder");
  check_refused(folder / "missing/file", "does not exist");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  check_refused(folder / "pipe", "is a device or a pipe");
  write_sealed(folder / "file", "content");
  check_refused(folder / "file/inside", "");
  REQUIRE(chmod((folder / "file").c_str(), 0) == 0);
  if (geteuid() != 0) check_refused(folder / "file", "cannot be read: Permission denied");
}

TEST_CASE("check_seal: says what a file is instead")
{
  const ScratchFolder folder;
  const std::string path = folder / "file";
  make_file(path, "");
  check_refused(path, "it is empty");
  make_file(path, "to be, or not to be\n");
  check_refused(path, "does not begin with Rankwise's seal");
  make_file(path, "\x89HDF\r\n\x1a\n and so on");
  check_refused(path, "an HDF5 file without Rankwise's seal");
  write_sealed(path, "content", {.name = "rankwise other", .version = 3, .called = ""});
  check_refused(path, "is not a test file: it is a file of kind \"rankwise other\", not \"rankwise test\"");
  write_sealed(path, "content", {.name = kind.name, .version = 4, .called = ""});
  check_refused(path, "version 4, which is newer than version 3");
  write_sealed(path, "content", {.name = kind.name, .version = 2, .called = ""});
  check_refused(path, "version 2, which is older than version 3");
}

TEST_CASE("content_digest: differs with any byte, and with the seal of a sealed file")
{
  const ScratchFolder folder;
  const std::string path = folder / "file";
  std::set<std::string> digests;
  for (const std::string& content : {std::string(), std::string(1, '\0'), std::string("a"), std::string(600, 'a'),
                                     std::string(599, 'a') + "b"}) {
    make_file(path, content);
    digests.insert(content_digest(path));
  }
  for (const char* content : {"a", "b"}) {
    write_sealed(path, content);
    digests.insert(content_digest(path));
  }
  CHECK(digests.size() == 7);
  CHECK(content_digest(folder / "none").empty());
  CHECK(content_digest("/dev/zero").empty());
}

TEST_CASE("check_seal: detects every truncation, every flipped bit and every extra byte")
{
  const ScratchFolder folder;
  const std::string path = folder / "file";
  write_sealed(path, "some content");
  const std::string whole = read_file(path);
  for (std::size_t size = 16; size < whole.size(); size += size < 510 ? 97 : 1) {
    make_file(path, whole.substr(0, size));
    check_refused(path, "cut short");
  }
  for (std::size_t bit = 0; bit < 8 * whole.size(); bit += 1 + bit % 3) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    make_file(path, bytes);
    check_refused(path, bit < 128 ? "seal" : "is damaged");
  }
  make_file(path, whole + '\0');
  check_refused(path, "has 525 bytes, and 524 of them were written");
}

TEST_CASE("check_seal: random damage is refused")
{
  const ScratchFolder folder;
  write_sealed(folder / "whole", std::string(3000, 'a') + std::string(3000, 'b'));
  const std::string whole = read_file(folder / "whole");
  Draw draw(1);
  for (int i = 0; i < fuzz_inputs(500); ++i) {
    make_file(folder / "file", damaged(whole, draw));
    CHECK_THROWS_AS(check_it(folder / "file"), UserError);
  }
}

TEST_CASE("commit_sealed: a failure leaves the existing file unchanged")
{
  const ScratchFolder folder;
  CHECK_THROWS_AS(commit_sealed(folder / "missing", kind), Error);
  write_sealed(folder / "file", "first");
  make_file(temporary_name(folder / "file"), "too short for a seal");
  CHECK_THROWS_WITH(commit_sealed(folder / "file", kind), Contains("too short for a seal"));
  CHECK_NOTHROW(check_it(folder / "file"));
  CHECK(folder.files() == 1);
}
