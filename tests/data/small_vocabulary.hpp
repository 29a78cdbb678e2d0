#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "data/bpe.hpp"

/// @file
/// Vocabularies of a few entries, in the same two files as GPT-2's.

namespace rankwise {

/// Bytes as GPT-2's files spell them.
inline std::string spelling(const std::string& bytes)
{
  std::string text;
  for (const char byte : bytes) text += spelling_of_byte(static_cast<unsigned char>(byte));
  return text;
}

/// Two neighbours that are merged.
using MergePair = std::pair<std::string, std::string>;

/// Every byte is an entry (and its own number), then comes what each merge makes, then `<|endoftext|>`.
inline VocabularyFiles small_vocabulary(const std::vector<MergePair>& merges)
{
  nlohmann::json entries;
  for (int byte = 0; byte < 256; ++byte) entries[spelling_of_byte(static_cast<unsigned char>(byte))] = byte;
  std::string list = "#version: 0.2\n";
  for (const auto& [left, right] : merges) {
    entries.emplace(spelling(left + right), entries.size());
    list += fmt::format("{} {}\n", spelling(left), spelling(right));
  }
  entries.emplace("<|endoftext|>", entries.size());
  return {.encoder_json = entries.dump(), .vocab_bpe = list, .source = "small"};
}

/// Some merges of English: "the" after a blank becomes one token.
inline VocabularyFiles small_vocabulary()
{
  return small_vocabulary({{"t", "h"},
                           {"th", "e"},
                           {" ", "the"},
                           {"o", "w"},
                           {"ow", "l"},
                           {"\n", "\n"},
                           {" ", " "},
                           {"\xC3", "\xA9"},
                           {"a", "a"},
                           {"aa", "aa"},
                           {"1", "2"},
                           {"'", "s"}});
}

}  // namespace rankwise
