#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.hpp"
#include "data/token_file.hpp"
#include "tests/catch.hpp"
#include "tests/data/small_vocabulary.hpp"
#include "tests/fuzz.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

const TokenFileInfo byte_info{
    .vocabulary = 256, .tokenizer = "byte", .source = "text.txt", .source_sha256 = "12ab"};

/// Token i of a row: depends on its place and on @p salt.
Token token_at(std::int64_t i, std::int64_t vocabulary, std::int64_t salt)
{
  return static_cast<Token>((i * 2'654'435'761 + i / 1000 + salt) % vocabulary);
}

std::vector<Token> row(std::int64_t first, std::int64_t count, std::int64_t vocabulary, std::int64_t salt)
{
  std::vector<Token> tokens;
  for (std::int64_t i = first; i < first + count; ++i) tokens.push_back(token_at(i, vocabulary, salt));
  return tokens;
}

/// A whole token file with few tokens.
void write_small(const std::string& path)
{
  TokenFileWriter writer(path, byte_info);
  writer.append(TextSplit::train, row(0, 5000, 256, 1));
  writer.append(TextSplit::validation, row(0, 500, 256, 2));
  writer.finish();
}

/// Applies @p change to the structure of a token file, and seals the result.
template <class Change>
void change(const std::string& path, const Change& change)
{
  std::filesystem::rename(path, temporary_name(path));
  {
    Hdf5Object file = open_hdf5(temporary_name(path), H5F_ACC_RDWR);
    change(file);
    file.close("change a token file");
  }
  commit_sealed(path, {.name = "rankwise tokens", .version = 2, .called = ""});
}

/// Puts a dataset of @p type and @p shape, holding @p values, in the place of dataset @p name.
void replace_dataset(const std::string& path, const char* name, hid_t type, std::vector<hsize_t> shape,
                     std::vector<std::int64_t> values)
{
  change(path, [&](const Hdf5Object& file) {
    check_hdf5(H5Ldelete(file.id(), name, H5P_DEFAULT), "remove a dataset");
    const Hdf5Object space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose,
                           "space");
    const Hdf5Object dataset(H5Dcreate2(file.id(), name, type, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                             H5Dclose, "dataset");
    check_hdf5(H5Dwrite(dataset.id(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "write");
  });
}

template <class Value>
void replace_attribute(const std::string& path, const std::string& name, const Value& value)
{
  change(path, [&](const Hdf5Object& file) {
    check_hdf5(H5Adelete(file.id(), name.c_str()), "remove an attribute");
    write_attribute(file, name, value);
  });
}

/// Whether opening @p path is refused with a message that contains @p words.
void check_refused(const std::string& path, const std::string& words)
{
  CHECK_THROWS_AS(open_token_file(path), UserError);
  CHECK_THROWS_WITH(open_token_file(path),
                    Contains("--data=" + path) && Contains(words) && Contains("build/data/prepare"));
}

}  // namespace

TEST_CASE("token file: what was appended in pieces is read back in other pieces, for every width of token")
{
  const ScratchFolder folder;
  for (const auto& [vocabulary, bytes] : {std::pair{2, 1}, {256, 1}, {257, 2}, {65'536, 2}, {65'537, 4}}) {
    const std::string path = folder / "tokens.h5";
    constexpr std::int64_t n = 200'000;  // three chunks and a bit
    TokenFileInfo info = byte_info;
    info.vocabulary = vocabulary;
    {
      TokenFileWriter writer(path, info);
      for (std::int64_t first = 0, size = 1; first < n; first += size, size = std::min(2 * size + 1, n - first)) {
        writer.append(TextSplit::train, row(first, size, vocabulary, 1));
        if (first < 100) writer.append(TextSplit::validation, row(first, size, vocabulary, 2));
      }
      writer.finish();
    }
    const Tokens tokens = open_token_file(path);
    CHECK(tokens.vocabulary == vocabulary);
    CHECK(tokens.tokenizer->name() == "byte");
    CHECK(tokens.sha256 == "12ab");
    CHECK(tokens.name == path);
    CHECK(!tokens.floor.has_value());
    REQUIRE(tokens.train->size() == n);
    CHECK(tokens.validation->size() == 120);
    for (const auto& [first, size] :
         {std::pair{0, 1}, {65'530, 12}, {0, 200'000}, {199'999, 1}, {100, 70'000}, {7, 0}}) {
      std::vector<Token> out(static_cast<std::size_t>(size), -5);
      tokens.train->read(first, out);
      CHECK((out == row(first, size, vocabulary, 1)));
    }
    std::vector<Token> out(120);
    tokens.validation->read(0, out);
    CHECK((out == row(0, 120, vocabulary, 2)));
    CHECK_THROWS_AS(tokens.train->read(n - 1, std::span(out)), Error);
    CHECK_THROWS_AS(tokens.train->read(-1, std::span(out)), Error);
    CHECK(std::filesystem::file_size(path) < static_cast<std::uintmax_t>(5 * 65'536 * bytes + 10'000));
  }
}

TEST_CASE("TokenFileWriter: the file has its name only after finish(), and without finish() none is left")
{
  const ScratchFolder folder;
  const std::string path = folder / "tokens.h5";
  {
    TokenFileWriter writer(path, byte_info);
    writer.append(TextSplit::train, row(0, 100, 256, 1));
    CHECK(!std::filesystem::exists(path));
    CHECK(folder.files() == 1);
  }
  CHECK(folder.files() == 0);

  write_small(path);
  CHECK(folder.files() == 1);
  const std::string before = read_file(path);
  {
    TokenFileWriter writer(path, byte_info);
    writer.append(TextSplit::train, row(0, 100, 256, 1));
  }
  CHECK((read_file(path) == before));
  CHECK(folder.files() == 1);
}

TEST_CASE("TokenFileWriter: refuses a folder that is not there, and tokens beyond the vocabulary")
{
  const ScratchFolder folder;
  CHECK_THROWS_AS(TokenFileWriter(folder / "no/such/folder.h5", byte_info), Error);
  CHECK_THROWS_WITH(TokenFileWriter(folder / "no/such/folder.h5", byte_info), Contains("No such file"));
  TokenFileWriter writer(folder / "tokens.h5", byte_info);
  CHECK_THROWS_AS(writer.append(TextSplit::train, std::vector<Token>{1, 256}), Error);
  CHECK_THROWS_AS(writer.append(TextSplit::train, std::vector<Token>{-1}), Error);
}

TEST_CASE("open_token_file: refuses what is not a sealed file")
{
  const ScratchFolder folder;
  check_refused(folder / "missing.h5", "does not exist");
  check_refused(folder / ".", "is a folder");
  make_file(folder / "empty.h5", "");
  check_refused(folder / "empty.h5", "it is empty");
  make_file(folder / "text.h5", "to be, or not to be\n");
  check_refused(folder / "text.h5", "does not begin with Rankwise's seal");
  create_hdf5(folder / "unsealed.h5").close("close");
  check_refused(folder / "unsealed.h5", "an HDF5 file without Rankwise's seal");
}

TEST_CASE("open_token_file: refuses a file that was cut short anywhere")
{
  const ScratchFolder folder;
  write_small(folder / "whole.h5");
  const std::string whole = read_file(folder / "whole.h5");
  for (const std::size_t size : {std::size_t{100}, std::size_t{512}, whole.size() / 2, whole.size() - 1}) {
    make_file(folder / "cut.h5", whole.substr(0, size));
    check_refused(folder / "cut.h5", "cut short");
  }
}

TEST_CASE("open_token_file: refuses files that are something else")
{
  const ScratchFolder folder;
  const std::string path = folder / "other.h5";
  const auto sealed_as = [&](const FileKind& kind) {
    write_small(path);
    std::filesystem::rename(path, temporary_name(path));
    commit_sealed(path, kind);
  };
  sealed_as({.name = "rankwise checkpoint", .version = 1, .called = ""});
  check_refused(path, "it is a file of kind \"rankwise checkpoint\"");
  sealed_as({.name = "rankwise tokens", .version = 3, .called = ""});
  check_refused(path, "version 3, which is newer than version 2");
  write_small(path);
  replace_attribute(path, "tokenizer", std::int64_t{1});
  check_refused(path, "not text");

  for (const std::int64_t vocabulary : {std::int64_t{0}, std::int64_t{-256}, std::int64_t{1} << 31}) {
    write_small(path);
    replace_attribute(path, "vocabulary", vocabulary);
    check_refused(path, "its vocabulary has");
  }
  for (const char* const name : {"vocabulary", "tokenizer", "source", "source_sha256"}) {
    write_small(path);
    change(path, [&](const Hdf5Object& file) { check_hdf5(H5Adelete(file.id(), name), "remove an attribute"); });
    check_refused(path, std::string("attribute ") + name);
  }
}

TEST_CASE("open_token_file: refuses datasets that are missing or of another kind")
{
  const ScratchFolder folder;
  const std::string path = folder / "tokens.h5";
  for (const char* const name : {"train", "validation"}) {
    write_small(path);
    change(path, [&](const Hdf5Object& file) {
      check_hdf5(H5Ldelete(file.id(), name, H5P_DEFAULT), "remove a dataset");
    });
    check_refused(path, std::string("dataset ") + name + ": it is missing");

    const std::string wrong = std::string("dataset ") + name + " is not a row of unsigned integers";
    write_small(path);
    replace_dataset(path, name, H5T_IEEE_F32LE, {3}, {1, 2, 3});
    check_refused(path, wrong);
    replace_dataset(path, name, H5T_STD_I16LE, {3}, {1, 2, 3});
    check_refused(path, wrong);
    replace_dataset(path, name, H5T_STD_U64LE, {3}, {1, 2, 3});
    check_refused(path, wrong);
    replace_dataset(path, name, H5T_STD_U8LE, {2, 2}, {1, 2, 3, 4});
    check_refused(path, wrong);
    replace_dataset(path, name, H5T_STD_U8LE, {}, {1});
    check_refused(path, wrong);
  }
}

TEST_CASE("open_token_file: names the first token beyond the file's own vocabulary")
{
  const ScratchFolder folder;
  const std::string path = folder / "tokens.h5";
  write_small(path);
  replace_dataset(path, "validation", H5T_STD_U16LE, {5}, {1, 255, 300, 4, 999});
  check_refused(path, "token 300 at position 2 of its dataset validation, which is outside its vocabulary of 256");
  replace_dataset(path, "validation", H5T_STD_U16LE, {5}, {1, 255, 30, 4, 99});
  CHECK_NOTHROW(open_token_file(path));
  replace_attribute(path, "vocabulary", std::int64_t{255});
  check_refused(path, "token 255 at position");
}

TEST_CASE("open_token_file: random damage is refused before HDF5 sees it")
{
  const ScratchFolder folder;
  write_small(folder / "whole.h5");
  const std::string whole = read_file(folder / "whole.h5");
  Draw draw(4);
  for (int i = 0; i < fuzz_inputs(300); ++i) {
    make_file(folder / "file.h5", damaged(whole, draw));
    CHECK_THROWS_AS(open_token_file(folder / "file.h5"), UserError);
  }
}

TEST_CASE("open_token_file: random structures under a valid seal are refused, or can be read")
{
  const ScratchFolder folder;
  const std::string path = folder / "file.h5";
  write_small(folder / "whole.h5");
  const std::vector<hid_t> types{H5T_STD_U8LE,  H5T_STD_U16BE,  H5T_STD_U32LE, H5T_STD_U64LE,
                                 H5T_STD_I16LE, H5T_IEEE_F32LE, H5T_C_S1};
  const std::vector<const char*> attributes{"vocabulary", "tokenizer", "source", "source_sha256"};
  Draw draw(5);
  const auto put_dataset = [&](const Hdf5Object& file, const char* name) {
    std::vector<hsize_t> shape(draw.below(3));
    for (hsize_t& extent : shape) extent = 1 + draw.below(40);
    const Hdf5Object space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose, "");
    const Hdf5Object dataset(H5Dcreate2(file.id(), name, types[draw.below(types.size())], space.id(), H5P_DEFAULT,
                                        H5P_DEFAULT, H5P_DEFAULT),
                             H5Dclose, "");
    const std::vector<std::int64_t> values(1600, static_cast<std::int64_t>(draw.below(400)));
    if (draw.below(4) != 0) H5Dwrite(dataset.id(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  };
  const auto mutate = [&](const Hdf5Object& file) {
    const char* const split = draw.below(2) == 0 ? "train" : "validation";
    const char* const attribute = attributes[draw.below(attributes.size())];
    const std::size_t kind = draw.below(4);
    if (kind == 0) {
      H5Ldelete(file.id(), split, H5P_DEFAULT);
      if (draw.below(4) != 0) put_dataset(file, split);
    } else if (kind == 1) {
      const hsize_t length = draw.below(2) == 0 ? draw.below(6000) : hsize_t{1} << draw.below(50);
      const Hdf5Object dataset(H5Dopen2(file.id(), split, H5P_DEFAULT), H5Dclose, "");
      H5Dset_extent(dataset.id(), &length);
    } else {
      H5Adelete(file.id(), attribute);
      if (kind == 2)
        write_attribute(file, attribute, static_cast<std::int64_t>(draw.below(600)) - 100);
      else if (draw.below(2) == 0)
        write_attribute(file, attribute, std::string(draw.below(300), 'x'));
    }
  };
  int accepted = 0;
  const int inputs = fuzz_inputs(300);
  for (int i = 0; i < inputs; ++i) {
    std::filesystem::copy_file(folder / "whole.h5", path, std::filesystem::copy_options::overwrite_existing);
    change(path, mutate);
    try {
      const Tokens tokens = open_token_file(path);
      for (const auto& source : {tokens.train, tokens.validation}) {
        std::vector<Token> all(static_cast<std::size_t>(source->size()));
        source->read(0, all);
        for (const Token token : all) REQUIRE((0 <= token && token < tokens.vocabulary));
      }
      ++accepted;
    } catch (const UserError&) {
    }
  }
  CHECK(accepted > 0);  // a shorter row, another source
  CHECK(accepted < inputs / 2);
}

TEST_CASE("open_token_file: refuses a dataset that claims more tokens than the file holds")
{
  const ScratchFolder folder;
  const std::string path = folder / "tokens.h5";
  write_small(path);
  change(path, [](const Hdf5Object& file) {
    const hsize_t many = hsize_t{1} << 40;
    const Hdf5Object dataset(H5Dopen2(file.id(), "train", H5P_DEFAULT), H5Dclose, "open a dataset");
    check_hdf5(H5Dset_extent(dataset.id(), &many), "make it long");
  });
  check_refused(path, "dataset train: not all of it is stored");
}

TEST_CASE("token file: a bit that flips after the file was opened is an error when its chunk is read")
{
  const ScratchFolder folder;
  const std::string path = folder / "tokens.h5";
  write_small(path);
  const std::string bytes = read_file(path);
  std::string needle;
  for (const Token token : row(2000, 20, 256, 1)) needle += static_cast<char>(token);
  const std::size_t at = bytes.find(needle);
  REQUIRE(at != std::string::npos);
  const Tokens tokens = open_token_file(path);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(at))
      .put(static_cast<char>(bytes[at] ^ 1));
  std::vector<Token> out(10);
  CHECK_THROWS_AS(tokens.train->read(0, out), Error);
  CHECK_NOTHROW(tokens.validation->read(0, out));
}

TEST_CASE("TokenFileWriter: the same tokens give the same bytes at any time")
{
  const ScratchFolder folder;
  write_small(folder / "first.h5");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5's time stamps count seconds
  write_small(folder / "second.h5");
  CHECK((read_file(folder / "first.h5") == read_file(folder / "second.h5")));
}

TEST_CASE("open_token_file: the tokenizer comes with the tokens, or the file is refused")
{
  const ScratchFolder folder;
  const std::string path = folder / "tokens.h5";
  const VocabularyFiles files = small_vocabulary();
  const auto write = [&](const std::string& encoder_json, std::int64_t vocabulary) {
    TokenFileWriter writer(path, {.vocabulary = vocabulary,
                                  .tokenizer = "gpt2",
                                  .source = "text.txt",
                                  .source_sha256 = "12ab",
                                  .files = {encoder_json, files.vocab_bpe, ""}});
    writer.append(TextSplit::train, std::vector<Token>{257, 258, 260});
    writer.finish();
  };
  write(files.encoder_json, 269);
  CHECK(open_token_file(path).tokenizer->decode(std::vector<Token>{257, 258, 260}) == "the theowl");
  change(path, [](const Hdf5Object& file) {
    check_hdf5(H5Ldelete(file.id(), "vocab.bpe", H5P_DEFAULT), "remove a dataset");
  });
  check_refused(path, "has no valid vocabulary");
  write(files.encoder_json, 269);
  replace_dataset(path, "encoder.json", H5T_STD_I64LE, {2}, {1, 2});
  check_refused(path, "encoder.json does not hold bytes");
  write(files.encoder_json, 269);
  replace_attribute(path, "tokenizer", std::string("words"));
  check_refused(path, "made with the tokenizer \"words\"");
  write(files.encoder_json, 270);
  check_refused(path, "says that its vocabulary has 270 entries, but that of its tokenizer has 269");
  write("{}", 269);
  CHECK_THROWS_WITH(open_token_file(path), Contains("the vocabulary in " + path + " is damaged"));
}
