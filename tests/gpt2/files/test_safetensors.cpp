#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/files/sealed_file.hpp"
#include "gpt2/files/safetensors.hpp"
#include "tests/catch.hpp"
#include "tests/fuzz.hpp"
#include "tests/gpt2/testing.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

const ScratchFolder scratch;

/// A file of that header, followed by @p data_bytes bytes.
std::string file_of(const std::string& header, std::size_t data_bytes)
{
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i * 37 + 11);
  return bytes;
}

/// The first line of what is said of a file of these bytes; empty when it is taken.
std::string complaint(const std::string& bytes)
{
  make_file(scratch / "case", bytes);
  try {
    const SafetensorsFile file(scratch / "case");
  } catch (const UserError& error) {
    const std::string said = error.what();
    return said.substr(0, said.find('\n'));
  }
  return "";
}
std::string complaint(const std::string& header, std::size_t data_bytes)
{
  return complaint(file_of(header, data_bytes));
}

void check_refused(const std::string& header, std::size_t data_bytes, const std::vector<std::string>& words)
{
  const std::string said = complaint(header, data_bytes);
  INFO(header << "\n" << said);
  CHECK(!said.empty());
  for (const std::string& word : words) CHECK(said.find(word) != std::string::npos);
}

/// An entry of a header.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets)
{
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

/// A header of these entries.
std::string object(const std::vector<std::string>& entries)
{
  return fmt::format("{{{}}}", fmt::join(entries, ","));
}

/// The tensor with this name.
const SafetensorsEntry& named(const SafetensorsFile& file, const std::string& name)
{
  const auto found = std::ranges::find(file.tensors(), name, &SafetensorsEntry::name);
  REQUIRE(found != file.tensors().end());
  return *found;
}

/// All elements of a tensor, read in pieces of @p piece.
std::vector<float> read_all(SafetensorsFile& file, const SafetensorsEntry& tensor, std::int64_t piece)
{
  std::vector<float> values(static_cast<std::size_t>(tensor.elements));
  for (std::int64_t first = 0; first < tensor.elements; first += piece)
    file.read(tensor, first,
              std::span(values).subspan(static_cast<std::size_t>(first),
                                        static_cast<std::size_t>(std::min(piece, tensor.elements - first))));
  return values;
}

/// Numbers that depend on their place.
std::vector<float> some_numbers(std::int64_t count, std::uint32_t series)
{
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(number(i, series)));
  return values;
}

}  // namespace

TEST_CASE("safetensors: what is written is read, in pieces of any size")
{
  const std::string path = scratch / "written";
  const std::vector<float> a = some_numbers(6, 1), c = some_numbers(40'000, 2), scalar{3.5F};
  {
    const std::vector<SafetensorsDeclaration> tensors{
        {"a", {2, 3}}, {"nothing", {0, 5}}, {"c", {40, 1000}}, {"s", {}}};
    SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
    writer.write(a);
    writer.write(std::span(c).first(17));
    std::vector<float> rest(c.begin() + 17, c.end());
    rest.push_back(scalar[0]);
    writer.write(rest);
    CHECK(!std::filesystem::exists(path));
    writer.close();
  }
  SafetensorsFile file(path);
  REQUIRE(file.tensors().size() == 4);
  CHECK(read_file(path).find(R"("__metadata__":{"format":"pt"})") == 9);
  const SafetensorsEntry& first = file.tensors()[0];
  CHECK(first.name == "a");
  CHECK(first.dtype == "F32");
  CHECK(first.shape == std::vector<std::int64_t>{2, 3});
  CHECK(first.bytes == Range{0, 24});
  CHECK(named(file, "s").shape.empty());
  CHECK(named(file, "nothing").elements == 0);
  for (const std::int64_t piece : {1, 4, 40'000}) CHECK(read_all(file, named(file, "a"), piece) == a);
  for (const std::int64_t piece : {999, 40'000}) CHECK(read_all(file, named(file, "c"), piece) == c);
  CHECK(read_all(file, named(file, "s"), 1) == scalar);
  CHECK(read_all(file, named(file, "nothing"), 1).empty());
  CHECK(scratch.files() >= 1);
}

TEST_CASE("safetensors: the bytes are the format's")
{
  const std::string path = scratch / "bytes";
  SafetensorsWriter writer(path, std::vector<SafetensorsDeclaration>{{"x", {2}}});
  writer.write(std::vector<float>{1, -2});
  writer.close();
  using namespace std::string_literals;
  CHECK(read_file(path) ==
        "\x38\0\0\0\0\0\0\0"
        R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"
        "  \0\0\x80\x3F\0\0\0\xC0"s);
}

TEST_CASE("safetensors: a writer that is not finished leaves the existing file unchanged")
{
  const std::string path = scratch / "kept";
  make_file(path, "before");
  const std::ptrdiff_t files = scratch.files();
  const std::vector<SafetensorsDeclaration> tensors{{"x", {3}}};
  {
    SafetensorsWriter writer(path, tensors);
    writer.write(std::vector<float>{1, 2});
    CHECK_THROWS_AS(writer.close(), Error);
    CHECK_THROWS_AS(writer.write(std::vector<float>{3, 4}), Error);
  }
  CHECK(read_file(path) == "before");
  CHECK(scratch.files() == files);
  CHECK_THROWS_AS(SafetensorsWriter(scratch / "no/such/folder", tensors), Error);
  CHECK_THROWS_AS(SafetensorsWriter(path, std::vector<SafetensorsDeclaration>{{"x", {1}}, {"x", {1}}}), Error);
  CHECK(scratch.files() == files);
}

TEST_CASE("safetensors: F16 and BF16 are read as the f32 that they are")
{
  std::string data(4 * 65'536, '\0');  // each number of 16 bits, as one type and as the other
  for (std::uint32_t i = 0; i < 65'536; ++i)
    for (const std::size_t at : {std::size_t{2} * i, std::size_t{2} * i + 131'072}) {
      data[at] = static_cast<char>(i & 0xFFU);
      data[at + 1] = static_cast<char>(i >> 8);
    }
  make_file(scratch / "halves", file_of(object({entry("h", "F16", "[65536]", "[0,131072]"),
                                                entry("b", "BF16", "[256,256]", "[131072,262144]")}),
                                        0) +
                                    data);
  SafetensorsFile file(scratch / "halves");
  const std::vector<float> h = read_all(file, named(file, "h"), 20'000),
                           b = read_all(file, named(file, "b"), 65'536);
  std::int64_t wrong = 0;
  for (std::uint32_t i = 0; i < 65'536; ++i) {
    const double sign = i < 32'768 ? 1 : -1, fraction = i % 1024 / 1024.0;
    const int exponent = static_cast<int>(i / 1024 % 32);
    if (exponent == 31) {
      wrong += (fraction == 0 ? h[i] == static_cast<float>(sign) * std::numeric_limits<float>::infinity()
                              : std::isnan(h[i]))
                   ? 0
                   : 1;
    } else {
      const double value = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
      wrong += h[i] == sign * value && std::signbit(h[i]) == (sign < 0) ? 0 : 1;
    }
    wrong += std::bit_cast<std::uint32_t>(b[i]) == i << 16 ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("safetensors: a tensor of another dtype is listed, and refused when it is read")
{
  make_file(
      scratch / "mixed",
      file_of(object({entry("mask", "BOOL", "[1,3]", "[0,3]"), entry("w", "F32", "[1]", "[3,7]")}) + "   ", 7));
  SafetensorsFile file(scratch / "mixed");
  CHECK(named(file, "mask").dtype == "BOOL");
  std::vector<float> to(1);
  CHECK_THROWS_WITH(file.read(named(file, "mask"), 0, to), Contains("\"mask\"") && Contains("BOOL"));
  file.read(named(file, "w"), 0, to);  // at an odd place
  CHECK_THROWS_AS(file.read(named(file, "w"), 1, to), Error);
  CHECK_THROWS_AS(file.read(named(file, "w"), -1, to), Error);
}

TEST_CASE("safetensors: the order of names is not the order of data")
{
  CHECK(complaint(object({entry("b", "U8", "[2]", "[1,3]"), entry("e", "F32", "[0]", "[1,1]"),
                          entry("a", "U8", "[1]", "[0,1]")}),
                  3)
            .empty());
  CHECK(complaint("{}", 0).empty());
}

TEST_CASE("safetensors: other files are refused")
{
  CHECK_THROWS_WITH(SafetensorsFile(scratch / "missing"), Contains("does not exist"));
  CHECK_THROWS_WITH(SafetensorsFile(scratch / std::string(256, 'x')),
                    Contains("cannot be found: File name too long"));
  CHECK_THROWS_WITH(SafetensorsFile(scratch / "."), Contains("is not a file"));
  CHECK(complaint("").find("0 bytes") != std::string::npos);
  CHECK(complaint("1234567").find("7 bytes") != std::string::npos);
  using namespace std::string_literals;
  CHECK(complaint("\3\0\0\0\0\0\0\0{}"s).find("cut short") != std::string::npos);
  CHECK(complaint("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}"s).find("cut short") != std::string::npos);
  for (const std::string& header :
       {""s, "[]"s, " {}"s, "null"s, "{"s, "{}{}"s, "{}x"s, "{}\0garbage"s, "{\"a\"}"s, "\xEF\xBB\xBF{}"s,
        "{\"\xFF\":{}}"s, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},})"s, std::string(100'000, '[')})
    check_refused(header, 0, {"header"});
}

TEST_CASE("safetensors: a header of more than 100 MB is refused before it is read")
{
  const std::string path = scratch / "long";
  const std::uint64_t length = 100'000'001;
  make_file(path, {reinterpret_cast<const char*>(&length), sizeof length});
  std::filesystem::resize_file(path, length + 8);  // a hole in the disk
  CHECK_THROWS_WITH(SafetensorsFile(path), Contains("100000001") && Contains("the format allows"));
  std::filesystem::remove(path);
}

TEST_CASE("safetensors: a header that is JSON of another form is refused")
{
  const std::string good = entry("a", "F32", "[1]", "[0,4]");
  check_refused(object({good, good}), 4, {"\"a\"", "twice"});
  check_refused(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, {"\"a\"", "twice"});
  check_refused(R"({"a":{"dtype":"F32","shape":[1]}})", 4, {"\"a\"", "no data_offsets"});
  check_refused(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, {"\"a\"", "no shape"});
  check_refused(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, {"\"a\"", "no dtype"});
  check_refused(R"({"a":{"shape":[1],"colour":"red"}})", 4, {"\"a\"", "\"colour\""});
  check_refused(R"({"a":[1]})", 4, {"\"a\"", "a list"});
  check_refused(R"({"a":3})", 4, {"\"a\"", "a number"});
  check_refused(R"({"__metadata__":{"format":3}})", 0, {"metadata", "a number"});
  check_refused(R"({"__metadata__":{"a":"1","a":"2"}})", 0, {"metadata", "twice"});
  check_refused(R"({"__metadata__":{},"__metadata__":{}})", 0, {"twice"});
  for (const std::string shape : {"[-1]", "[1.0]", "[\"1\"]", "[[1]]", "[null]", "[true]", "[{}]", "1", "null",
                                  "{}", "[9223372036854775808]", "[36893488147419103232]"})
    check_refused(object({entry("a", "F32", shape, "[0,4]")}), 4, {"\"a\"", "shape"});
  check_refused(object({entry("a", "F32", "[9223372036854775808]", "[0,4]")}), 4, {"\"a\"", "too large"});
  for (const std::string offsets : {"[]", "[0]", "[0,4,4]", "[0,-4]", "\"04\"", "[0,4.0]"})
    check_refused(object({entry("a", "F32", "[1]", offsets)}), 4, {"\"a\"", "data_offsets"});
  check_refused(R"({"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4, {"\"a\"", "dtype"});
  check_refused(object({entry(fmt::format("a\\u001b[2J{}", std::string(1000, 'x')), "F64", "[1]", "[0,4]")}), 4,
                {"\"a?[2Jxxx", "..."});
}

TEST_CASE("safetensors: data that do not fit dtype, shape, each other or the file are refused")
{
  check_refused(object({entry("a", "F33", "[1]", "[0,4]")}), 4, {"\"a\"", "unknown dtype \"F33\""});
  check_refused(object({entry("a", "F16", "[1]", "[0,4]")}), 4, {"\"a\"", "4 bytes", "2 by"});
  check_refused(object({entry("a", "F32", "[2]", "[0,4]")}), 4, {"\"a\"", "4 bytes", "8 by"});
  check_refused(object({entry("a", "F32", "[1]", "[4,0]")}), 4, {"\"a\"", "before it begins"});
  check_refused(object({entry("a", "F32", "[1]", "[1,5]")}), 5, {"\"a\"", "gap of 1"});
  check_refused(object({entry("a", "F32", "[1]", "[0,4]")}), 3, {"\"a\"", "byte 4 of 3"});
  check_refused(object({entry("a", "F32", "[1]", "[0,4]")}), 5, {"1 bytes after"});
  check_refused("{}", 1, {"1 bytes after"});
  const std::string a = entry("a", "U8", "[4]", "[0,4]");
  check_refused(object({a, entry("b", "U8", "[4]", "[3,7]")}), 7, {"\"b\"", "overlaps"});
  check_refused(object({a, entry("b", "U8", "[4]", "[0,4]")}), 4, {"\"b\"", "overlaps"});
  check_refused(object({a, entry("b", "U8", "[4]", "[5,9]")}), 9, {"\"b\"", "gap of 1"});
  // Products that are 4, or 0, in 64 bits.
  check_refused(object({entry("a", "F32", "[4611686018427387905]", "[0,4]")}), 4, {"\"a\"", "counted"});
  check_refused(object({entry("a", "F32", "[4294967296,4294967296]", "[0,0]")}), 0, {"\"a\"", "counted"});
  check_refused(object({entry("a", "F32", "[9223372036854775807,3]", "[0,4]")}), 4, {"\"a\"", "counted"});
  check_refused(object({entry("a", "U8", "[9223372036854775807]", "[0,9223372036854775807]")}), 4,
                {"\"a\"", "byte 9223372036854775807"});
  check_refused(object({a, entry("b", "U8", "[9223372036854775803]", "[4,9223372036854775807]")}), 4,
                {"\"b\"", "byte 9223372036854775807"});
}

TEST_CASE("safetensors: random damage is refused, or the file can be read")
{
  const std::string path = scratch / "damaged";
  {
    const std::vector<SafetensorsDeclaration> tensors{{"h.0.weight", {2, 3}}, {"h.1.bias", {4}}, {"z", {1, 1, 2}}};
    SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
    writer.write(some_numbers(12, 1));
    writer.close();
  }
  const std::string good = read_file(path);
  std::int64_t refused = 0, read = 0;
  const auto look = [&](const std::string& bytes) {
    make_file(path, bytes);
    try {
      SafetensorsFile file(path);
      for (const SafetensorsEntry& tensor : file.tensors()) read_all(file, tensor, 3);
      ++read;
    } catch (const UserError&) {
      ++refused;
    }
  };
  const std::int64_t inputs = fuzz_inputs(2'000);
  for (std::int64_t i = 0; i < inputs; ++i) {
    std::string bytes = good;
    const auto random = philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {3, 5});
    for (std::uint32_t flips = 0; flips < 1 + random[0] % 3; ++flips) {
      const std::size_t at = random[1 + flips] % bytes.size();
      bytes[at] = static_cast<char>(bytes[at] ^ (1U << (random[0] >> (8 + 3 * flips) & 7U)));
    }
    if (random[0] >> 30 == 0) bytes.resize(random[3] % bytes.size());
    look(bytes);
  }
  CHECK(refused + read == inputs);
  CHECK(refused > inputs / 2);
  CHECK(read > inputs / 20);  // flips among the elements
  refused = read = 0;
  for (std::size_t length = 0; length <= good.size(); ++length) look(good.substr(0, length));
  CHECK(read == 1);
}
