#include "data/text_file.hpp"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

constexpr std::size_t block_bytes = 1 << 20;
constexpr std::size_t most_waiting = 64 << 20;  // encoding them takes about thirty times as much memory

/// UTF-8: the first byte of a character is anything but 10xxxxxx.
bool begins_character(char byte)
{
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

std::string system_message()
{
  return std::generic_category().message(errno);
}

/// Calls @p use for each block of the file, in order.
void read_blocks(const std::string& path, const std::function<void(std::string_view)>& use)
{
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  check(file != nullptr, fmt::format("cannot open {}: {}", path, system_message()));
  std::vector<char> block(block_bytes);
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), file.get())) {
    use({block.data(), count});
  }
  check(std::ferror(file.get()) == 0, fmt::format("cannot read {}: {}", path, system_message()));
}

[[noreturn]] void refuse(const std::string& path, const std::string& why)
{
  throw UserError(fmt::format("the text {} {}.", path, why),
                  "Name the file with the text, and then the token file to write.");
}

}  // namespace

TextMeasure measure_text(const std::string& path)
{
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) refuse(path, "does not exist" + looked_for(path));
  if (!std::filesystem::is_regular_file(status)) refuse(path, "is not a regular file, so it cannot be read twice");
  if (std::FILE* const file = std::fopen(path.c_str(), "rb")) {
    std::fclose(file);
  } else {
    refuse(path, "cannot be read: " + system_message());
  }

  TextMeasure measure;
  Sha256 digest;
  read_blocks(path, [&](std::string_view block) {
    measure.bytes += static_cast<std::int64_t>(block.size());
    for (const char byte : block) measure.characters += begins_character(byte);
    digest.update(std::as_bytes(std::span(block)));
  });
  if (measure.bytes == 0) refuse(path, "is empty");
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
  read_blocks(path, [&](std::string_view block) {
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
