#include <cstdint>
#include <limits>

#include "common/base/text.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

TEST_CASE("group_digits: groups of three from the right, with a sign")
{
  CHECK(group_digits(0) == "0");
  CHECK(group_digits(999) == "999");
  CHECK(group_digits(1000) == "1,000");
  CHECK(group_digits(-999) == "-999");
  CHECK(group_digits(-1000) == "-1,000");
  CHECK(group_digits(123456) == "123,456");
  CHECK(group_digits(-123456) == "-123,456");
  CHECK(group_digits(1557611200) == "1,557,611,200");
  CHECK(group_digits(std::numeric_limits<std::int64_t>::min()) == "-9,223,372,036,854,775,808");
  CHECK(group_digits(3528704) == "3,528,704");
}

TEST_CASE("edit_distance: inserted, deleted, replaced and swapped letters")
{
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("stpes", "steps") == 1);
  CHECK(edit_distance("ab", "ba") == 1);
  CHECK(edit_distance("ca", "abc") == 3);  // optimal string alignment: no letter is moved twice
}

TEST_CASE("nearest: the first of the nearest, and nothing when all are far")
{
  const std::vector<std::string> names = {"steps", "seed", "sequence", "learning-rate"};
  CHECK(nearest("stpes", names) == "steps");
  CHECK(nearest("sede", names) == "seed");
  CHECK(nearest("learning_rates", names) == "learning-rate");
  CHECK(nearest("bucket", names) == "");
  CHECK(nearest("steps", {}) == "");
  CHECK(nearest("ac", {"ab", "aa"}) == "ab");
  CHECK(nearest("st", {"step"}) == "step");  // two more letters are near, three are not
  CHECK(nearest("st", {"steps"}) == "");
  CHECK(nearest("learning-rate-of-all", {"learning-rate"}) == "");
  CHECK(nearest("learning-rates-all", {"learning-rate"}) == "learning-rate");
}

TEST_CASE("nearest: a very long word is refused without being compared letter by letter")
{
  const std::vector<std::string> names(40, "learning-rate");  // comparing would take minutes
  CHECK(nearest(std::string(20'000'000, 'a'), names) == "");
}

TEST_CASE("one_of: commas, and an or before the last")
{
  CHECK(one_of({}) == "");
  CHECK(one_of({"a"}) == "a");
  CHECK(one_of({"a", "b"}) == "a or b");
  CHECK(one_of({"a", "b", "c"}) == "a, b or c");
}

TEST_CASE("printable: control characters and bytes that are not UTF-8 are shown, all else stays")
{
  CHECK(printable("two\tblanks\n") == "two\tblanks\n");
  CHECK(printable("caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\xA6\x89 \xC2\xA0") ==
        "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\xA6\x89 \xC2\xA0");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\x1B[31m\r\a\x7F") == "\\x1b[31m\\x0d\\x07\\x7f");
  CHECK(printable("\xC2\x9B"
                  "31m") == "\\u{9b}31m");  // U+009B begins a sequence as ESC [ does
  CHECK(printable("run\u202Etxt.h5 \u2066\u200F\u061C") == "run\\u{202e}txt.h5 \\u{2066}\\u{200f}\\u{61c}");
  CHECK(printable("caf\xE9") == "caf\\xe9");
  CHECK(printable("\xE2\x82") == "\\xe2\\x82");
}

TEST_CASE("trimmed: no blanks at the ends, those inside stay")
{
  CHECK(trimmed("") == "");
  CHECK(trimmed(" \t ") == "");
  CHECK(trimmed("a") == "a");
  CHECK(trimmed("  a b\r\n") == "a b");
}
