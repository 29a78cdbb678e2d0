#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/pair_loader.hpp"

/// @file
/// Texts of conversations in which each line tells its number, and what a batch of pairs holds of them.

namespace rankwise {

/// The tokenizer of these texts.
inline const ByteTokenizer bytes;

/// The source of a text of bytes.
inline std::shared_ptr<const TokenSource> source_of(const std::string& text)
{
  return std::make_shared<MemoryTokens>(bytes.encode(text));
}

/// A text in which each line is another one, and its lines in order; line i is followed by line i + 1 of the same
/// conversation unless it ends one. Conversations have 2, 3 or 4 lines.
struct Talk {
  std::string text;
  std::vector<std::string> lines;
  std::vector<std::size_t> followed;  ///< lines that begin a pair
};

/// A text of @p conversations conversations.
/// @param length  of line i, as a function of i; at least 4.
template <class Length>
Talk talk(int conversations, const Length& length)
{
  Talk talk;
  for (int c = 0; c < conversations; ++c) {
    for (int line = 0; line < 2 + c % 3; ++line) {
      const std::size_t number = talk.lines.size();
      if (line > 0) talk.followed.push_back(number - 1);
      const auto wanted = static_cast<std::size_t>(length(number));
      std::string words = std::to_string(1000 + number);
      for (std::size_t i = words.size(); i < wanted; ++i) words += static_cast<char>('a' + (i * number) % 26);
      talk.lines.push_back(words);
      talk.text += words + '\n';
    }
    talk.text += '\n';
  }
  return talk;
}

/// A length of line @p number.
inline std::size_t between_4_and_20(std::size_t number)
{
  return 4 + number * 5 % 17;
}

/// Row @p b of a batch, before it was masked.
inline std::vector<Token> unmasked(const PairBatch& batch, std::int64_t b)
{
  std::vector<Token> row(static_cast<std::size_t>(batch.T));
  for (std::size_t t = 0; t < row.size(); ++t) {
    const std::size_t i = static_cast<std::size_t>(b * batch.T) + t;
    row[t] = batch.targets[i] >= 0 ? batch.targets[i] : batch.inputs[i];
  }
  return row;
}

/// The two lines of row @p b, which end at the special token after them.
inline std::vector<std::string> lines_of(const PairBatch& batch, std::int64_t b)
{
  std::vector<std::string> lines(1);
  for (const Token token : unmasked(batch, b)) {
    if (token < 256) lines.back() += static_cast<char>(token);
    if (token == pair_tokens(256).sep) lines.emplace_back();
  }
  lines.pop_back();
  return lines;
}

/// Number of the line, as it says itself.
inline std::size_t number_of(const std::string& line)
{
  return static_cast<std::size_t>(std::stoi(line.substr(0, 4)) - 1000);
}

}  // namespace rankwise
