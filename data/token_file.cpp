#include "data/token_file.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

constexpr FileKind token_file_kind{.name = token_seal, .version = 2, .called = "a token file"};
constexpr const char* remedy =
    "A token file is made with: build/data/prepare --tokenizer=byte TEXT.txt FILE.h5\n"
    "Without --data the embedded corpus is used.";
constexpr hsize_t chunk_tokens = 1 << 16;  // the unit of reading and of its checksum
constexpr const char* split_names[] = {"train", "validation"};
constexpr const char* encoder_name = "encoder.json";
constexpr const char* merges_name = "vocab.bpe";

/// The smallest little-endian unsigned integer type that holds every token of @p vocabulary.
hid_t stored_type(std::int64_t vocabulary)
{
  if (vocabulary <= 256) return H5T_STD_U8LE;
  return vocabulary <= 65'536 ? H5T_STD_U16LE : H5T_STD_U32LE;
}

/// Creates an empty dataset that can grow.
Hdf5Object create_dataset(const Hdf5Object& file, const char* name, hid_t type)
{
  const std::string doing = fmt::format("create dataset {}", name);
  const hsize_t none = 0, unlimited = H5S_UNLIMITED;
  const Hdf5Object space(H5Screate_simple(1, &none, &unlimited), H5Sclose, doing);
  const Hdf5Object properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, doing);
  check_hdf5(H5Pset_chunk(properties.id(), 1, &chunk_tokens), doing);
  check_hdf5(H5Pset_fletcher32(properties.id()), doing);
  check_hdf5(H5Pset_obj_track_times(properties.id(), false), doing);  // so that the same tokens give the same bytes
  return {H5Dcreate2(file.id(), name, type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), H5Dclose,
          doing};
}

std::int64_t length_of(const Hdf5Object& dataset)
{
  const Hdf5Object space(H5Dget_space(dataset.id()), H5Sclose, "measure a dataset");
  return check_hdf5(H5Sget_simple_extent_npoints(space.id()), "measure a dataset");
}

/// Creates a dataset with the bytes of @p text.
void write_text(const Hdf5Object& file, const char* name, const std::string& text)
{
  const std::string doing = fmt::format("write {}", name);
  Hdf5Object dataset = create_dataset(file, name, H5T_STD_U8LE);
  const hsize_t bytes = text.size();
  check_hdf5(H5Dset_extent(dataset.id(), &bytes), doing);
  check_hdf5(H5Dwrite(dataset.id(), H5T_NATIVE_UCHAR, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()), doing);
  dataset.close(doing);
}

/// The tokens of one split, read from the file on demand. An open dataset keeps its file open.
class FileTokens final : public TokenSource {
 public:
  FileTokens(Hdf5Object dataset, std::string name)
      : dataset_(std::move(dataset)), name_(std::move(name)), size_(length_of(dataset_))
  {
  }

  std::int64_t size() const override { return size_; }

  void read(std::int64_t first, std::span<Token> out) const override
  {
    const std::string doing = fmt::format("read {} tokens at {} of {}", out.size(), first, name_);
    check(0 <= first && first + static_cast<std::int64_t>(out.size()) <= size_, doing + ": beyond its end");
    if (out.empty()) return;
    const hsize_t start = static_cast<hsize_t>(first), count = out.size();
    const Hdf5Object file_space(H5Dget_space(dataset_.id()), H5Sclose, doing);
    const Hdf5Object memory_space(H5Screate_simple(1, &count, nullptr), H5Sclose, doing);
    check_hdf5(H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, &start, nullptr, &count, nullptr), doing);
    check_hdf5(
        H5Dread(dataset_.id(), H5T_NATIVE_INT32, memory_space.id(), file_space.id(), H5P_DEFAULT, out.data()),
        doing);
  }

 private:
  Hdf5Object dataset_;
  std::string name_;
  std::int64_t size_;
};

// ---- Refusals --------------------------------------------------------------------------------------------------

[[noreturn]] void refuse_tokens(const std::string& path, const std::string& why)
{
  throw UserError(fmt::format("--data={} {}", path, why), remedy);
}

Hdf5Object open_checked(const std::string& path)
{
  check_seal(path, token_file_kind, {.asked = "--data=" + path, .remedy = remedy});
  try {
    return open_hdf5(path);
  } catch (const Error&) {
    refuse_tokens(path, fmt::format("is damaged: HDF5 says \"{}\".", hdf5_cause()));
  }
}

TokenFileInfo read_info(const Hdf5Object& file, const std::string& path)
{
  try {
    const TokenFileInfo info{.vocabulary = read_integer_attribute(file, "vocabulary"),
                             .tokenizer = read_text_attribute(file, "tokenizer"),
                             .source = read_text_attribute(file, "source"),
                             .source_sha256 = read_text_attribute(file, "source_sha256")};
    if (info.vocabulary < 1 || info.vocabulary > std::numeric_limits<Token>::max()) {
      refuse_tokens(path, fmt::format("says that its vocabulary has {} entries.", info.vocabulary));
    }
    return info;
  } catch (const Error& error) {
    refuse_tokens(path, fmt::format("is not a complete token file: {}.", error.what()));
  }
}

/// Reads a dataset that write_text() has written.
std::string read_text(const Hdf5Object& file, const std::string& path, const char* name)
{
  try {
    const Hdf5Object dataset = open_plain_dataset(file, name);
    const Hdf5Object type(H5Dget_type(dataset.id()), H5Tclose, "ask for a type");
    check(H5Tequal(type.id(), H5T_STD_U8LE) > 0, fmt::format("{} does not hold bytes", name));
    const std::int64_t bytes = length_of(dataset);
    check(bytes <= max_vocabulary_file_bytes,
          fmt::format("{} says that it has {} bytes", name, group_digits(bytes)));
    std::string text(static_cast<std::size_t>(bytes), '\0');
    check_hdf5(H5Dread(dataset.id(), H5T_NATIVE_UCHAR, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()),
               fmt::format("read {}", name));
    return text;
  } catch (const Error& error) {
    refuse_tokens(path, fmt::format("has no valid vocabulary: {}.", error.what()));
  }
}

/// The tokenizer of the file's tokens.
std::shared_ptr<const Tokenizer> read_tokenizer(const Hdf5Object& file, const std::string& path,
                                                const TokenFileInfo& info)
{
  const std::vector<std::string> known = tokenizer_names();
  if (std::find(known.begin(), known.end(), info.tokenizer) == known.end()) {
    refuse_tokens(path, fmt::format("was made with the tokenizer \"{}\"; this program has {}.", info.tokenizer,
                                    one_of(known)));
  }
  if (!needs_vocabulary_files(info.tokenizer)) return make_tokenizer(info.tokenizer);
  std::shared_ptr<const Tokenizer> tokenizer =
      make_tokenizer(info.tokenizer, {.encoder_json = read_text(file, path, encoder_name),
                                      .vocab_bpe = read_text(file, path, merges_name),
                                      .source = path});
  if (tokenizer->vocabulary() != info.vocabulary) {
    refuse_tokens(path, fmt::format("says that its vocabulary has {} entries, but that of its tokenizer has {}.",
                                    info.vocabulary, tokenizer->vocabulary()));
  }
  return tokenizer;
}

std::shared_ptr<const TokenSource> open_split(const Hdf5Object& file, const std::string& path, TextSplit split,
                                              std::int64_t vocabulary)
{
  const char* const name = split_names[static_cast<int>(split)];
  Hdf5Object dataset;
  try {
    dataset = open_plain_dataset(file, name);
  } catch (const Error& error) {
    refuse_tokens(path, fmt::format("is not a complete token file: {}.", error.what()));
  }
  const Hdf5Object type(H5Dget_type(dataset.id()), H5Tclose, "ask for a type");
  const Hdf5Object space(H5Dget_space(dataset.id()), H5Sclose, "ask for a shape");
  const std::size_t bytes = H5Tget_size(type.id());
  if (H5Sget_simple_extent_ndims(space.id()) != 1 || H5Tget_class(type.id()) != H5T_INTEGER ||
      H5Tget_sign(type.id()) != H5T_SGN_NONE || bytes > sizeof(Token)) {
    refuse_tokens(
        path,
        fmt::format("is not a token file: its dataset {} is not a row of unsigned integers of 1, 2 or 4 bytes.",
                    name));
  }
  auto tokens = std::make_shared<const FileTokens>(std::move(dataset), fmt::format("{} of {}", name, path));
  if (std::int64_t{1} << 8 * bytes <= vocabulary) return tokens;  // the integer type cannot hold a larger token
  try {
    if (const auto beyond = first_token_beyond(*tokens, vocabulary)) {
      refuse_tokens(
          path,
          fmt::format("has the token {} at position {} of its dataset {}, which is outside its vocabulary of {}.",
                      beyond->token, group_digits(beyond->position), name, group_digits(vocabulary)));
    }
  } catch (const Error& error) {
    refuse_tokens(path, fmt::format("is damaged: {}.", error.what()));
  }
  return tokens;
}

}  // namespace

// ---- Writing ---------------------------------------------------------------------------------------------------

TokenFileWriter::TokenFileWriter(const std::string& path, const TokenFileInfo& info)
    : path_(path), vocabulary_(static_cast<Token>(info.vocabulary))
{
  check(info.vocabulary >= 1 && info.vocabulary <= std::numeric_limits<Token>::max(),
        "the size of the vocabulary is out of range");
  create_temporary(path);
  or_remove_temporary(path, [&] {
    file_ = create_hdf5(temporary_name(path), seal_bytes);
    write_attribute(file_, "vocabulary", info.vocabulary);
    write_attribute(file_, "tokenizer", info.tokenizer);
    write_attribute(file_, "source", info.source);
    write_attribute(file_, "source_sha256", info.source_sha256);
    if (needs_vocabulary_files(info.tokenizer)) {
      write_text(file_, encoder_name, info.files.encoder_json);
      write_text(file_, merges_name, info.files.vocab_bpe);
    }
    for (std::size_t i = 0; i < splits_.size(); ++i)
      splits_[i].dataset = create_dataset(file_, split_names[i], stored_type(info.vocabulary));
  });
}

TokenFileWriter::~TokenFileWriter()
{
  if (!finished_) remove_temporary(path_);
}

void TokenFileWriter::append(TextSplit split, std::span<const Token> tokens)
{
  if (tokens.empty()) return;
  for (const Token token : tokens) {
    check(0 <= token && token < vocabulary_, fmt::format("token {} is outside the vocabulary", token));
  }
  Written& written = splits_.at(static_cast<std::size_t>(split));
  const Hdf5Object& dataset = written.dataset;
  written.digest += placed_digest(written.tokens, tokens);
  written.tokens += std::ssize(tokens);
  const std::string doing = fmt::format("write {} tokens to {}", tokens.size(), path_);
  const hsize_t start = static_cast<hsize_t>(length_of(dataset)), count = tokens.size(), end = start + count;
  check_hdf5(H5Dset_extent(dataset.id(), &end), doing);
  const Hdf5Object file_space(H5Dget_space(dataset.id()), H5Sclose, doing);
  const Hdf5Object memory_space(H5Screate_simple(1, &count, nullptr), H5Sclose, doing);
  check_hdf5(H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, &start, nullptr, &count, nullptr), doing);
  check_hdf5(
      H5Dwrite(dataset.id(), H5T_NATIVE_INT32, memory_space.id(), file_space.id(), H5P_DEFAULT, tokens.data()),
      doing);
}

void TokenFileWriter::finish()
{
  const std::string doing = "complete " + path_;
  for (Written& split : splits_) split.dataset.close(doing);
  file_.close(doing);
  check_written();
  commit_sealed(path_, token_file_kind);
  finished_ = true;
}

/// Throws Error unless the file holds the tokens that were appended.
void TokenFileWriter::check_written() const
{
  const std::string path = temporary_name(path_);
  Hdf5Object file = open_hdf5(path);
  for (std::size_t i = 0; i < splits_.size(); ++i) {
    const FileTokens stored(open_plain_dataset(file, split_names[i]), path);
    std::uint64_t digest = 0;
    std::vector<Token> block;
    for (std::int64_t first = 0; first < stored.size(); first += std::ssize(block)) {
      block.resize(static_cast<std::size_t>(std::min<std::int64_t>(chunk_tokens, stored.size() - first)));
      stored.read(first, block);
      digest += placed_digest(first, std::span<const Token>(block));
    }
    check(stored.size() == splits_[i].tokens && digest == splits_[i].digest,
          fmt::format("{}: {} does not hold the tokens that were written to it", path, split_names[i]));
  }
  file.close("close " + path);
}

// ---- Reading ---------------------------------------------------------------------------------------------------

Tokens open_token_file(const std::string& path)
{
  const Hdf5Object file = open_checked(path);
  const TokenFileInfo info = read_info(file, path);
  return {.train = open_split(file, path, TextSplit::train, info.vocabulary),
          .validation = open_split(file, path, TextSplit::validation, info.vocabulary),
          .vocabulary = info.vocabulary,
          .name = path,
          .tokenizer = read_tokenizer(file, path, info),
          .sha256 = info.source_sha256,
          .floor = std::nullopt};
}

}  // namespace rankwise
