#include "data/line_index.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

constexpr int only_blanks = -1;  // in place of a number of newlines

}  // namespace

LineIndex::LineIndex(std::shared_ptr<const TokenSource> source, const Tokenizer& tokenizer)
    : source_(std::move(source))
{
  check(tokenizer.encode("\n").size() == 1, "the tokenizer has no token for a newline");
  newlines_.resize(static_cast<std::size_t>(tokenizer.vocabulary()));
  for (Token token = 0; token < tokenizer.vocabulary(); ++token) {
    const std::string text = tokenizer.decode({&token, 1});
    const auto count = std::min<std::ptrdiff_t>(std::count(text.begin(), text.end(), '\n'), 2);
    newlines_[static_cast<std::size_t>(token)] =
        static_cast<std::int8_t>(count == 0 && trimmed(text).empty() ? only_blanks : count);
  }
  find_lines();
}

/// Fills followed_ and last_, and finds the shortest pair.
void LineIndex::find_lines()
{
  constexpr std::int64_t block_size = 1 << 16;
  std::vector<Token> block;
  // The line that was found last, the line before it if that is of the same conversation, and the newlines since then.
  std::int64_t first = -1, length = 0, length_before = 0;
  // Blanks count as soon as text follows them in their line: at the end of a line, or alone in one, they mean nothing.
  std::int64_t blanks = 0;
  int breaks = 2;
  const auto end_line = [&] {
    const std::int64_t pair = length_before + length;
    if (length_before > 0 && (shortest_pair_ == 0 || pair < shortest_pair_)) shortest_pair_ = pair;
  };
  for (std::int64_t begin = 0; begin < source_->size(); begin += block_size) {
    block.resize(static_cast<std::size_t>(std::min(block_size, source_->size() - begin)));
    source_->read(begin, block);
    for (std::size_t i = 0; i < block.size(); ++i) {
      const int newlines = newlines_of(block[i]);
      if (newlines == only_blanks) {
        ++blanks;
        continue;
      }
      if (newlines > 0) {
        if (breaks == 0) end_line();
        breaks = std::min(breaks + newlines, 2);
        blanks = 0;
        continue;
      }
      if (breaks > 0) {  // a line begins: now it is known whether the line before it has a successor
        if (first >= 0) (breaks == 1 ? followed_ : last_).push_back(first);
        length_before = breaks == 1 ? length : 0;
        first = begin + static_cast<std::int64_t>(i) - blanks;
        length = 0;
        breaks = 0;
      }
      length += std::exchange(blanks, 0) + 1;
    }
  }
  if (breaks == 0) end_line();
  if (first >= 0) last_.push_back(first);
}

std::int64_t LineIndex::successor(std::int64_t pair) const
{
  check(0 <= pair && pair < pairs(), "a pair outside the data");
  const std::int64_t first = followed_[static_cast<std::size_t>(pair)];
  const auto last = std::upper_bound(last_.begin(), last_.end(), first);  // the last line of the conversation
  if (pair + 1 < pairs() && followed_[static_cast<std::size_t>(pair + 1)] < *last) return pair + 1;
  return pairs() + (last - last_.begin());
}

std::vector<Token> LineIndex::read(std::int64_t line, std::int64_t limit) const
{
  check(0 <= line && line < lines(), "a line outside the data");
  const std::int64_t first =
      line < pairs() ? followed_[static_cast<std::size_t>(line)] : last_[static_cast<std::size_t>(line - pairs())];
  std::vector<Token> tokens(static_cast<std::size_t>(std::min(limit, source_->size() - first)));
  source_->read(first, tokens);
  const auto end = std::find_if(tokens.begin(), tokens.end(), [&](Token token) { return newlines_of(token) > 0; });
  const bool whole = end != tokens.end() || std::ssize(tokens) < limit;  // else blanks may stand before more text
  tokens.erase(end, tokens.end());
  while (whole && newlines_of(tokens.back()) == only_blanks) tokens.pop_back();
  return tokens;
}

}  // namespace rankwise
