#include "data/token_file.hpp"

#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>

#include <fmt/format.h>

#include "common/error.hpp"
#include "common/text.hpp"

namespace rankwise {

namespace {

constexpr const char* format_name = "rankwise tokens";
constexpr std::int64_t format_version = 1;
constexpr hsize_t chunk_tokens = 1 << 16;  // the unit of reading and of its checksum
constexpr const char* split_names[] = {"train", "validation"};

/// The smallest unsigned integer, in little-endian order, that holds every token of @p vocabulary.
hid_t stored_type(std::int64_t vocabulary)
{
  if (vocabulary <= 256) return H5T_STD_U8LE;
  return vocabulary <= 65'536 ? H5T_STD_U16LE : H5T_STD_U32LE;
}

/// An empty dataset that can grow.
Hdf5Object create_dataset(const Hdf5Object& file, const char* name, hid_t type)
{
  const std::string doing = fmt::format("create dataset {}", name);
  const hsize_t none = 0, unlimited = H5S_UNLIMITED;
  const Hdf5Object space(H5Screate_simple(1, &none, &unlimited), H5Sclose, doing);
  const Hdf5Object properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, doing);
  check_hdf5(H5Pset_chunk(properties.id(), 1, &chunk_tokens), doing);
  check_hdf5(H5Pset_fletcher32(properties.id()), doing);
  check_hdf5(H5Pset_obj_track_times(properties.id(), false), doing);  // the same tokens make the same bytes
  return {H5Dcreate2(file.id(), name, type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), H5Dclose,
          doing};
}

std::int64_t length_of(const Hdf5Object& dataset)
{
  const Hdf5Object space(H5Dget_space(dataset.id()), H5Sclose, "measure a dataset");
  return check_hdf5(H5Sget_simple_extent_npoints(space.id()), "measure a dataset");
}

/// The tokens of one split, read from the file as they are needed. An open dataset keeps its file open.
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

// ---- Refusals -------------------------------------------------------------------------------------------------------

[[noreturn]] void refuse(const std::string& path, const std::string& why)
{
  throw UserError(fmt::format("--data={} {}", path, why),
                  "A token file is made with: build/data/prepare --tokenizer=byte TEXT.txt FILE.h5\n"
                  "Without --data the embedded corpus is used.");
}

Hdf5Object open_checked(const std::string& path)
{
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) refuse(path, "does not exist.");
  if (std::filesystem::is_directory(status)) refuse(path, "is a folder, not a file.");
  if (std::FILE* const file = std::fopen(path.c_str(), "rb")) {
    std::fclose(file);
  } else {
    refuse(path, fmt::format("cannot be read: {}.", std::generic_category().message(errno)));
  }
  if (!is_hdf5(path)) refuse(path, "is not a token file: it is not in HDF5 format.");
  try {
    return open_hdf5(path);
  } catch (const Error&) {
    refuse(path, fmt::format("is damaged or cut short: HDF5 says \"{}\".", hdf5_cause()));
  }
}

TokenFileInfo read_info(const Hdf5Object& file, const std::string& path)
{
  if (!has_attribute(file, "format") || !has_attribute(file, "format_version")) {
    refuse(path, "is an HDF5 file, but not a token file: it has no attributes format and format_version.");
  }
  try {
    if (const std::string format = read_text_attribute(file, "format"); format != format_name) {
      refuse(path, fmt::format("is not a token file: its format is \"{}\", not \"{}\".", format, format_name));
    }
    if (const std::int64_t version = read_integer_attribute(file, "format_version"); version != format_version) {
      refuse(path,
             fmt::format("is a token file of version {}; this program reads version {}.", version, format_version));
    }
    const TokenFileInfo info{.vocabulary = read_integer_attribute(file, "vocabulary"),
                             .tokenizer = read_text_attribute(file, "tokenizer"),
                             .source = read_text_attribute(file, "source"),
                             .source_sha256 = read_text_attribute(file, "source_sha256")};
    if (info.vocabulary < 1 || info.vocabulary > std::numeric_limits<Token>::max()) {
      refuse(path, fmt::format("says that its vocabulary has {} entries.", info.vocabulary));
    }
    return info;
  } catch (const Error& error) {
    refuse(path, fmt::format("is not a complete token file: {}.", error.what()));
  }
}

std::shared_ptr<const TokenSource> open_split(const Hdf5Object& file, const std::string& path, Split split,
                                              std::int64_t vocabulary)
{
  const char* const name = split_names[static_cast<int>(split)];
  Hdf5Object dataset;
  try {
    dataset = Hdf5Object(H5Dopen2(file.id(), name, H5P_DEFAULT), H5Dclose, "open it");
  } catch (const Error&) {
    refuse(path, fmt::format("is not a complete token file: it has no dataset {}.", name));
  }
  const Hdf5Object type(H5Dget_type(dataset.id()), H5Tclose, "ask for a type");
  const Hdf5Object space(H5Dget_space(dataset.id()), H5Sclose, "ask for a shape");
  const std::size_t bytes = H5Tget_size(type.id());
  if (H5Sget_simple_extent_ndims(space.id()) != 1 || H5Tget_class(type.id()) != H5T_INTEGER ||
      H5Tget_sign(type.id()) != H5T_SGN_NONE || bytes > sizeof(Token)) {
    refuse(path,
           fmt::format("is not a token file: its dataset {} is not a row of unsigned integers of 1, 2 or 4 bytes.",
                       name));
  }
  auto tokens = std::make_shared<const FileTokens>(std::move(dataset), fmt::format("{} of {}", name, path));
  if (std::int64_t{1} << 8 * bytes <= vocabulary) return tokens;  // the integers cannot hold a greater token
  try {
    if (const auto beyond = first_token_beyond(*tokens, vocabulary)) {
      refuse(path,
             fmt::format("has the token {} at position {} of its dataset {}, beyond its own vocabulary of {}.",
                         beyond->token, group_digits(beyond->position), name, group_digits(vocabulary)));
    }
  } catch (const Error& error) {
    refuse(path, fmt::format("is damaged: {}.", error.what()));
  }
  return tokens;
}

}  // namespace

// ---- Writing --------------------------------------------------------------------------------------------------------

TokenFileWriter::TokenFileWriter(const std::string& path, const TokenFileInfo& info)
    : path_(path), temporary_(temporary_name(path)), vocabulary_(static_cast<Token>(info.vocabulary))
{
  check(info.vocabulary >= 1 && info.vocabulary <= std::numeric_limits<Token>::max(),
        "a vocabulary that is no size");
  if (std::FILE* const file = std::fopen(temporary_.c_str(), "wb")) {
    std::fclose(file);
  } else {
    throw UserError(fmt::format("{} cannot be written: {}.", path, std::generic_category().message(errno)),
                    fmt::format("The tokens are written to {} first, and renamed when they are complete.\n"
                                "Choose a folder that exists and that you may write to.",
                                temporary_));
  }
  file_ = create_hdf5(temporary_);
  write_attribute(file_, "format", format_name);
  write_attribute(file_, "format_version", format_version);
  write_attribute(file_, "vocabulary", info.vocabulary);
  write_attribute(file_, "tokenizer", info.tokenizer);
  write_attribute(file_, "source", info.source);
  write_attribute(file_, "source_sha256", info.source_sha256);
  for (int i = 0; i < 2; ++i) datasets_[i] = create_dataset(file_, split_names[i], stored_type(info.vocabulary));
}

TokenFileWriter::~TokenFileWriter()
{
  if (temporary_.empty()) return;
  for (Hdf5Object& dataset : datasets_) dataset = {};
  file_ = {};
  std::remove(temporary_.c_str());
}

void TokenFileWriter::append(Split split, std::span<const Token> tokens)
{
  if (tokens.empty()) return;
  for (const Token token : tokens) {
    check(0 <= token && token < vocabulary_, fmt::format("token {} is beyond the vocabulary", token));
  }
  const Hdf5Object& dataset = datasets_[static_cast<int>(split)];
  const std::string doing = fmt::format("write {} tokens to {}", tokens.size(), temporary_);
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
  const std::string doing = fmt::format("complete {}", temporary_);
  for (Hdf5Object& dataset : datasets_) dataset.close(doing);
  file_.close(doing);
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  check(!error, fmt::format("cannot rename {} to {}: {}", temporary_, path_, error.message()));
  temporary_.clear();
}

// ---- Reading --------------------------------------------------------------------------------------------------------

Tokens open_token_file(const std::string& path)
{
  const Hdf5Object file = open_checked(path);
  const TokenFileInfo info = read_info(file, path);
  return {.train = open_split(file, path, Split::train, info.vocabulary),
          .validation = open_split(file, path, Split::validation, info.vocabulary),
          .vocabulary = info.vocabulary,
          .name = path,
          .tokenizer = info.tokenizer,
          .sha256 = info.source_sha256,
          .floor = std::nullopt};
}

}  // namespace rankwise
