#include "data/text_file.hpp"

#include <algorithm>
#include <filesystem>
#include <span>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/plain_text.hpp"

namespace rankwise {

namespace {

constexpr std::size_t most_waiting = 64 << 20;  // encoding them takes about thirty times as much memory
constexpr std::string_view end_of_text = "<|endoftext|>";

/// UTF-8: the first byte of a character is anything but 10xxxxxx.
bool begins_character(char byte)
{
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

FileRequest request_of(const std::string& path)
{
  return {.asked = "the text " + path, .remedy = "Name the file with the text, and then the token file to write."};
}

/// Counts of features of a text, read in blocks, that its reader may not expect.
struct Findings {
  std::int64_t bytes = 0, zeros = 0, first_zero = 0, not_utf8 = 0, marks = 0, line_feeds = 0, returns = 0,
               returns_before_feeds = 0, ends_of_text = 0, odd_blanks = 0, separators = 0;
  std::string waiting{};  // end of the text so far: it is judged together with the next block

  void add(std::string_view block)
  {
    waiting += block;
    std::string_view rest = waiting;
    while (rest.size() >= end_of_text.size()) {
      const std::size_t length = character_bytes(rest), taken = std::max<std::size_t>(length, 1);
      if (rest[0] == '\0' && zeros++ == 0) first_zero = bytes;
      not_utf8 += length == 0;
      marks += rest.starts_with("\uFEFF");
      line_feeds += rest[0] == '\n';
      returns += rest[0] == '\r';
      returns_before_feeds += rest[0] == '\r' && rest[1] == '\n';
      for (const std::string_view blank : {"\n\u00A0\n", "\n\u200B\n", "\n\u3000\n", "\n\f\n"})
        odd_blanks += rest.starts_with(blank);
      separators += rest.starts_with("\u2028") || rest.starts_with("\u0085");
      ends_of_text += rest[0] == '<' && rest.starts_with(end_of_text);
      rest.remove_prefix(taken);
      bytes += static_cast<std::int64_t>(taken);
    }
    waiting.erase(0, waiting.size() - rest.size());
  }

  /// Judges the last bytes too; then returns notes for the user, a line each.
  std::string notes()
  {
    add(std::string(end_of_text.size() - 1, ' '));
    std::string all;
    const auto note = [&](std::int64_t count, std::string_view what) {
      if (count > 0) all += fmt::format("note: {} {}.\n", group_digits(count), what);
    };
    note(not_utf8,
         "bytes are not UTF-8. Which coding they are in, the file does not say: "
         "iconv -f CODING -t UTF-8 FILE > TEXT.txt, "
         "where CODING may be LATIN1, WINDOWS-1252, WINDOWS-1251, SHIFT-JIS or one of iconv -l");
    note(marks,
         "byte-order marks (U+FEFF) stand within the text, as where files were joined. To remove them: "
         "sed 's/\\xEF\\xBB\\xBF//g' FILE > TEXT.txt");
    note(returns_before_feeds,
         "lines end with CR LF, and the tokens keep both. For LF: tr -d '\\r' < FILE > TEXT.txt");
    if (line_feeds == 0)
      note(returns,
           "lines end with CR alone, as on old Macs, and no line feed is in the text. For LF: "
           "tr '\\r' '\\n' < FILE > TEXT.txt");
    note(odd_blanks,
         "lines hold nothing but a blank that is no space (U+00A0, U+200B, U+3000 or a form feed), "
         "so they are not empty, and end no conversation");
    note(separators, "characters separate lines (U+2028 or U+0085) and are no line feeds, so they end no line");
    note(ends_of_text, "times <|endoftext|> occurs, which is read as 13 characters, not as one token");
    return all;
  }
};

}  // namespace

TextMeasure measure_text(const std::string& path)
{
  const FileRequest request = request_of(path);
  const auto refuse = [&](const std::string& why, const std::string& remedy) {
    throw UserError(fmt::format("{} {}.", request.asked, why), remedy);
  };
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error))
    refuse("is not a regular file, so it cannot be read twice", request.remedy);
  TextMeasure measure;
  Sha256 digest;
  Findings found;
  read_text(path, request, [&](std::string_view block) {
    measure.bytes += std::ssize(block);
    for (const char byte : block) measure.characters += begins_character(byte);
    digest.update(std::as_bytes(std::span(block)));
    found.add(block);
  });
  if (measure.bytes == 0) refuse("is empty", request.remedy);
  measure.notes = found.notes();
  if (found.zeros > 0)
    refuse(fmt::format("has {} zero bytes, the first after {} others; a text has none", group_digits(found.zeros),
                       group_digits(found.first_zero)),
           "It is another kind of file, or a part of it was never written. Bytes that stand in a text by\n"
           "mistake are removed with: tr -d '\\000' < FILE > TEXT.txt");
  measure.sha256 = digest.hex();
  return measure;
}

std::size_t take_characters(std::string_view text, std::int64_t& characters)
{
  std::size_t taken = 0;
  for (; taken < text.size(); ++taken) {
    if (!begins_character(text[taken])) continue;
    if (characters == 0) break;
    --characters;
  }
  return taken;
}

void BlockEncoder::add(std::string_view block)
{
  const std::size_t known = waiting_.size();
  waiting_ += block;
  const std::size_t cut = tokenizer_.last_cut(waiting_, known);
  check(waiting_.size() - cut <= most_waiting,
        fmt::format("{} bytes of the text are one word for the tokenizer \"{}\", and the word does not end",
                    group_digits(static_cast<std::int64_t>(waiting_.size() - cut)), tokenizer_.name()));
  use_(tokenizer_.encode(std::string_view(waiting_).substr(0, cut)));
  waiting_.erase(0, cut);
}

void BlockEncoder::finish()
{
  use_(tokenizer_.encode(waiting_));
  waiting_.clear();
}

void write_tokens(const std::string& path, const TextMeasure& measure, const Tokenizer& tokenizer,
                  TokenFileWriter& out, const std::function<void(std::int64_t)>& progress)
{
  TextSplit split = TextSplit::train;
  BlockEncoder encoder(tokenizer, [&](std::span<const Token> tokens) { out.append(split, tokens); });
  std::int64_t to_train = measure.train_characters(), bytes = 0;
  Sha256 digest;
  read_text(path, request_of(path), [&](std::string_view block) {
    digest.update(std::as_bytes(std::span(block)));
    bytes += static_cast<std::int64_t>(block.size());
    if (split == TextSplit::train) {
      const std::size_t taken = take_characters(block, to_train);
      encoder.add(block.substr(0, taken));
      block.remove_prefix(taken);
      if (!block.empty()) {
        encoder.finish();
        split = TextSplit::validation;
      }
    }
    encoder.add(block);
    progress(bytes);
  });
  encoder.finish();
  check(digest.hex() == measure.sha256, fmt::format("{} has changed while it was read", path));
}

}  // namespace rankwise
