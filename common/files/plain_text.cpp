#include "common/files/plain_text.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/descriptor.hpp"

namespace rankwise {

namespace {

using namespace std::string_view_literals;

/// A kind of file that is no text in UTF-8.
struct OtherKind {
  std::string_view begin;    // its first bytes, for begins_as()
  std::string_view called;   // its name in messages
  std::string_view command;  // command that turns it into text
};

constexpr std::array<OtherKind, 17> other_kinds{{
    // Before UTF-16, whose mark it begins with.
    {"\xFF\xFE\0\0"sv, "UTF-32", "iconv -f UTF-32 -t UTF-8 FILE > TEXT.txt"},
    {"\0\0\xFE\xFF"sv, "UTF-32", "iconv -f UTF-32 -t UTF-8 FILE > TEXT.txt"},
    {"\xFF\xFE"sv, "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > TEXT.txt"},
    {"\xFE\xFF"sv, "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > TEXT.txt"},
    // Without a mark.
    {"?\0?\0"sv, "UTF-16", "iconv -f UTF-16LE -t UTF-8 FILE > TEXT.txt"},
    {"\0?\0?"sv, "UTF-16", "iconv -f UTF-16BE -t UTF-8 FILE > TEXT.txt"},
    {"\x1F\x8B"sv, "gzip", "gunzip < FILE > TEXT.txt"},
    {"BZh91AY&SY"sv, "bzip2", "bunzip2 < FILE > TEXT.txt"},
    {"\xFD\x37zXZ\0"sv, "xz", "unxz < FILE > TEXT.txt"},
    {"\x28\xB5\x2F\xFD"sv, "zstd", "unzstd < FILE > TEXT.txt"},
    {"PK\x03\x04"sv, "a zip archive", "unzip -p FILE > TEXT.txt"},
    {"%PDF-"sv, "PDF", "pdftotext FILE TEXT.txt"},
    {"version https://git-lfs"sv, "a pointer of Git LFS, in place of the file", "git lfs pull"},
    {"<!??????? "sv, "HTML", "pandoc --from=html --to=plain FILE > TEXT.txt"},  // <!DOCTYPE, in letters of any size
    {"<html"sv, "HTML", "pandoc --from=html --to=plain FILE > TEXT.txt"},
    {"{\\rtf"sv, "RTF", "unrtf --text FILE > TEXT.txt"},
    {"\x89"sv, "a token file or another file of numbers", ""},
}};

/// True if a text begins with a pattern, in which ? is any byte but 0.
bool begins_as(std::string_view text, std::string_view pattern)
{
  const auto fits = [](char wanted, char byte) { return wanted == '?' ? byte != '\0' : byte == wanted; };
  return text.size() >= pattern.size() && std::equal(pattern.begin(), pattern.end(), text.begin(), fits);
}

[[noreturn]] void refuse(const FileRequest& request, const std::string& why)
{
  throw UserError(fmt::format("{} {}.", request.asked, why), request.remedy);
}

/// The first byte of a pipe, if it has come; for a writer of the pipe this waits ten seconds.
std::optional<char> first_byte(const Descriptor& pipe, const FileRequest& request)
{
  char byte = 0;
  for (int naps = 0; naps < 100; ++naps) {
    const ssize_t count = read(pipe.id(), &byte, 1);
    if (count != 0) return count > 0 ? std::optional(byte) : std::nullopt;  // a writer that is slow: EAGAIN
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  refuse({request.asked, "Start the program that writes to it first. " + request.remedy},
         "is a pipe, and no program has written to it for ten seconds");
}

}  // namespace

std::string_view without_mark(std::string_view begin, const FileRequest& request)
{
  begin.remove_prefix(begin.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  for (const OtherKind& kind : other_kinds) {
    if (!begins_as(begin, kind.begin)) continue;
    const std::string convert = kind.command.empty() ? "" : fmt::format("Make text of it: {}\n", kind.command);
    refuse({request.asked, convert + request.remedy},
           fmt::format("is not plain text in UTF-8: it looks like {}", kind.called));
  }
  return begin;
}

void read_text(const std::string& path, const FileRequest& request,
               const std::function<void(std::string_view)>& use)
{
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) refuse(request, "does not exist" + looked_for(path));
  if (std::filesystem::is_directory(status)) refuse(request, "is a folder");
  const Descriptor opened(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
  if (!opened.good()) refuse(request, "cannot be read: " + system_error());
  const std::optional<char> head = std::filesystem::is_fifo(status) ? first_byte(opened, request) : std::nullopt;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(fdopen(fcntl(opened.id(), F_DUPFD_CLOEXEC, 0), "rb"),
                                                             &std::fclose);
  check_system(file != nullptr && fcntl(opened.id(), F_SETFL, 0) == 0 &&
                   (!head || std::ungetc(static_cast<unsigned char>(*head), file.get()) >= 0),
               "read " + path);
  std::string block(1 << 20, '\0');
  for (bool first = true; const std::size_t count = std::fread(block.data(), 1, block.size(), file.get());
       first = false) {
    const std::string_view read = std::string_view(block).substr(0, count);
    use(first ? without_mark(read, request) : read);
  }
  check(std::ferror(file.get()) == 0, fmt::format("cannot read {}: {}", path, system_error()));
}

std::string whole_text(const std::string& path, const FileRequest& request, std::int64_t most)
{
  std::string text;
  read_text(path, request, [&](std::string_view block) {
    text += block;
    if (std::ssize(text) > most) refuse(request, fmt::format("has more than {} bytes", group_digits(most)));
  });
  return text;
}

}  // namespace rankwise
