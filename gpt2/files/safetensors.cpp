#include "gpt2/files/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/memory/tensor.hpp"

namespace rankwise {

namespace {

static_assert(std::endian::native == std::endian::little,
              "elements are read and written in the byte order of memory");

constexpr std::int64_t length_bytes = 8, longest_header = 100'000'000;
constexpr std::string_view metadata_name = "__metadata__";

[[noreturn]] void refuse_tensors(const std::string& path, const std::string& why)
{
  throw UserError(fmt::format("{} {}.", path, why),
                  "A safetensors file is a header of names, types and offsets, followed by the elements. Make or "
                  "download the file again.");
}

/// A tensor's name for a message: in quotes, truncated if it is long, without control characters.
std::string in_quotes(std::string_view name)
{
  constexpr std::size_t longest = 80;
  std::string shown(name.substr(0, longest));
  const auto hidden = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7F'; };
  std::replace_if(shown.begin(), shown.end(), hidden, '?');
  return fmt::format("\"{}{}\"", shown, name.size() > longest ? "..." : "");
}

/// Bytes of one element of a dtype.
std::optional<std::int64_t> element_bytes(std::string_view dtype)
{
  constexpr std::pair<std::string_view, std::int64_t> known[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};
  for (const auto& [name, bytes] : known)
    if (name == dtype) return bytes;
  return {};
}

/// The product of two non-negative numbers, unless it overflows.
std::optional<std::int64_t> product(std::optional<std::int64_t> a, std::int64_t b)
{
  if (!a || (b > 0 && *a > std::numeric_limits<std::int64_t>::max() / b)) return {};
  return *a * b;
}

/// The product of all extents, unless it overflows.
std::optional<std::int64_t> elements_of(const std::vector<std::int64_t>& shape)
{
  std::optional<std::int64_t> elements = 1;
  for (const std::int64_t extent : shape) elements = product(elements, extent);
  return elements;
}

// ---- Header ----------------------------------------------------------------------------------------------------

/// Receives the header while it is parsed, and refuses invalid content at once. No JSON document is built, because
/// the header could make it arbitrarily large.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  std::vector<SafetensorsEntry> tensors;

  bool start_object(std::size_t) override
  {
    if (depth_ > 1 || in_list_) misplaced("an object");
    ++depth_;
    if (depth_ == 2) {
      entry_ = {};
      entry_.name = name_;
      fields_.clear();
      offsets_.clear();
    }
    return true;
  }
  bool key(string_t& key) override
  {
    if (depth_ == 1) {
      if (!names_.insert(key).second)
        refuse_tensors(path_, fmt::format("names {} twice in its header", in_quotes(key)));
      name_ = key;
    } else {
      if (!fields_.insert(key).second) refuse_entry(fmt::format("has {} twice", in_quotes(key)));
      if (!in_metadata() && key != "dtype" && key != "shape" && key != "data_offsets")
        refuse_entry(fmt::format("has a field {}, which is not in the format", in_quotes(key)));
      field_ = key;
    }
    return true;
  }
  bool end_object() override
  {
    if (depth_ == 2 && !in_metadata()) finish_entry();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override
  {
    if (depth_ != 2 || in_list_ || in_metadata() || field_ == "dtype") misplaced("a list");
    in_list_ = true;
    return true;
  }
  bool end_array() override
  {
    in_list_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override
  {
    if (!in_list_) misplaced("a number");
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()))
      refuse_entry(fmt::format("has the number {} in its {}, which is too large", value, field_));
    (field_ == "shape" ? entry_.shape : offsets_).push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& value) override
  {
    if (depth_ != 2 || in_list_ || (!in_metadata() && field_ != "dtype")) misplaced("text");
    if (!in_metadata()) entry_.dtype = value;
    return true;
  }
  bool null() override { misplaced("null"); }
  bool boolean(bool) override { misplaced("true or false"); }
  bool number_integer(number_integer_t) override { misplaced("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { misplaced("a number that is no integer"); }
  bool binary(binary_t&) override { misplaced("bytes"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override
  {
    refuse_tensors(path_, fmt::format("has a header that is not JSON, at its byte {}", position));
  }

 private:
  bool in_metadata() const { return name_ == metadata_name; }

  [[noreturn]] void refuse_entry(const std::string& why) const
  {
    refuse_tensors(path_, fmt::format("is damaged: {} {}",
                                      in_metadata() ? "its metadata" : "tensor " + in_quotes(name_), why));
  }
  [[noreturn]] void misplaced(std::string_view what) const
  {
    if (depth_ == 0) refuse_tensors(path_, fmt::format("has a header that is {}, not a list of tensors", what));
    if (depth_ == 1) refuse_entry(fmt::format("is {} instead of an object", what));
    refuse_entry(fmt::format("has {} in its field {}", what, in_quotes(field_)));
  }

  /// Keeps the tensor if its fields are consistent.
  void finish_entry()
  {
    for (const char* const field : {"dtype", "shape", "data_offsets"})
      if (!fields_.contains(field)) refuse_entry(fmt::format("has no {}", field));
    if (offsets_.size() != 2) refuse_entry(fmt::format("has {} data_offsets instead of 2", offsets_.size()));
    if (offsets_[1] < offsets_[0]) refuse_entry("ends before it begins");
    const std::optional<std::int64_t> size = element_bytes(entry_.dtype), elements = elements_of(entry_.shape);
    if (!size) refuse_entry(fmt::format("is of the unknown dtype {}", in_quotes(entry_.dtype)));
    const std::optional<std::int64_t> bytes = product(elements, *size);
    if (!bytes) refuse_entry("has a shape of more elements than can be counted");
    entry_.bytes = {offsets_[0], offsets_[1] - offsets_[0]};
    if (*bytes != entry_.bytes.count)
      refuse_entry(
          fmt::format("takes {} bytes in the file, and {} by its dtype and shape", entry_.bytes.count, *bytes));
    entry_.elements = *elements;
    tensors.push_back(std::move(entry_));
  }

  const std::string& path_;
  int depth_ = 0;
  bool in_list_ = false;
  std::set<std::string> names_, fields_;  // names seen in the header, and fields seen in the entry
  std::string name_, field_;              // position of the parser
  SafetensorsEntry entry_;
  std::vector<std::int64_t> offsets_;
};

/// Refuses tensors, in the order of their data, that do not
/// cover all of @p data_bytes bytes without gap or overlap.
void check_places(const std::string& path, const std::vector<SafetensorsEntry>& tensors, std::int64_t data_bytes)
{
  std::int64_t end = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    const auto refuse_it = [&](const std::string& why) {
      refuse_tensors(path, fmt::format("is damaged or cut short: tensor {} {}", in_quotes(tensor.name), why));
    };
    if (tensor.bytes.end() > data_bytes)
      refuse_it(fmt::format("ends at byte {} of {} bytes of data", tensor.bytes.end(), data_bytes));
    if (tensor.bytes.first < end) refuse_it("overlaps the tensor before it");
    if (tensor.bytes.first > end)
      refuse_it(fmt::format("leaves a gap of {} bytes before it", tensor.bytes.first - end));
    end = tensor.bytes.end();
  }
  if (end != data_bytes)
    refuse_tensors(path,
                   fmt::format("is damaged: {} bytes after its last tensor belong to no tensor", data_bytes - end));
}

/// Reads exactly @p count bytes.
bool read_bytes(std::FILE* file, void* to, std::size_t count)
{
  return std::fread(to, 1, count, file) == count;
}

/// Reads the header's text; afterwards the file is positioned at the first element.
std::string read_header(const std::string& path, std::FILE* file, std::int64_t file_bytes)
{
  std::uint64_t length = 0;
  if (file_bytes < length_bytes || !read_bytes(file, &length, length_bytes))
    refuse_tensors(path,
                   fmt::format("is not a safetensors file: it has {} bytes, and the length of the header takes 8",
                               file_bytes));
  if (length > static_cast<std::uint64_t>(file_bytes - length_bytes))
    refuse_tensors(
        path,
        fmt::format("is not a safetensors file, or is cut short: it has {} bytes, and its header would have {}",
                    file_bytes, length));
  if (length > static_cast<std::uint64_t>(longest_header))
    refuse_tensors(path, fmt::format("has a header of {} bytes; the format allows {}", length, longest_header));
  std::string header(static_cast<std::size_t>(length), ' ');
  if (!read_bytes(file, header.data(), header.size())) refuse_tensors(path, "cannot be read: " + system_error());
  // The parser treats a zero byte as the end of the text.
  if (!header.starts_with('{') || header.find('\0') != std::string::npos)
    refuse_tensors(path, "is not a safetensors file: its header is not a JSON object");
  return header;
}

/// The value of a 16-bit float with 5 bits of exponent and 10 of fraction.
float from_half(std::uint16_t bits)
{
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16, exponent = bits >> 10 & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0)
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(0x1p-24F * static_cast<float>(fraction)));
  constexpr std::uint32_t bias_difference = 127 - 15, largest = 0x1F, largest_of_float = 0xFF;
  const std::uint32_t wide = exponent == largest ? largest_of_float : exponent + bias_difference;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

float from_bf16(std::uint16_t bits)
{
  bf16 value;
  value.bits = bits;
  return static_cast<float>(value);
}

}  // namespace

// ---- Reading ---------------------------------------------------------------------------------------------------

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path))
{
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path_, error);
  if (status.type() == std::filesystem::file_type::not_found)
    refuse_tensors(path_, "does not exist" + looked_for(path_));
  if (status.type() == std::filesystem::file_type::none)
    refuse_tensors(path_, "cannot be found: " + error.message());
  if (!std::filesystem::is_regular_file(status)) refuse_tensors(path_, "is not a file");
  file_.reset(std::fopen(path_.c_str(), "rb"));
  if (!file_) refuse_tensors(path_, "cannot be read: " + system_error());
  const auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path_));

  const std::string header = read_header(path_, file_.get(), file_bytes);
  HeaderReader reader(path_);
  nlohmann::json::sax_parse(header, &reader);
  tensors_ = std::move(reader.tensors);
  data_ = length_bytes + static_cast<std::int64_t>(header.size());
  std::ranges::stable_sort(tensors_, {}, [](const SafetensorsEntry& tensor) {
    return std::pair(tensor.bytes.first, tensor.bytes.end());
  });
  check_places(path_, tensors_, file_bytes - data_);
}

void SafetensorsFile::read(const SafetensorsEntry& tensor, std::int64_t first, std::span<float> to)
{
  check(0 <= first && std::ssize(to) <= tensor.elements - first, "the elements to read are not in the tensor");
  const auto read_next = [&](void* into, std::size_t bytes) {
    if (!read_bytes(file_.get(), into, bytes))
      throw Error(fmt::format("cannot read tensor {} of {}", in_quotes(tensor.name), path_));
  };
  const bool f32 = tensor.dtype == "F32", bf16 = tensor.dtype == "BF16";
  if (!f32 && !bf16 && tensor.dtype != "F16")
    throw UserError(fmt::format("tensor {} of {} is of dtype {}.", in_quotes(tensor.name), path_, tensor.dtype),
                    "Weights can be read from F32, F16 and BF16.");
  const std::int64_t at = data_ + tensor.bytes.first + first * (f32 ? 4 : 2);
  check(fseeko(file_.get(), at, SEEK_SET) == 0, "cannot seek in a safetensors file");
  if (f32) return read_next(to.data(), to.size_bytes());

  std::array<std::uint16_t, 16'384> block;
  for (std::size_t done = 0; done < to.size(); done += block.size()) {
    const auto halves = std::span(block).first(std::min(block.size(), to.size() - done));
    read_next(halves.data(), halves.size_bytes());
    std::ranges::transform(halves, to.begin() + static_cast<std::ptrdiff_t>(done), bf16 ? from_bf16 : from_half);
  }
}

// ---- Writing ---------------------------------------------------------------------------------------------------

namespace {

/// The header, padded with spaces so that the elements begin at a multiple of 8 bytes.
std::string make_header(std::span<const SafetensorsDeclaration> tensors, const SafetensorsMetadata& metadata)
{
  std::vector<std::string> entries;
  const auto add = [&entries](std::string_view name, const std::string& value) {
    entries.push_back(json_text(name) + ":" + value);
  };
  if (!metadata.empty()) add(metadata_name, json_text(metadata));
  std::int64_t end = 0;
  std::set<std::string_view> names;
  for (const SafetensorsDeclaration& tensor : tensors) {
    check(tensor.name != metadata_name && names.insert(tensor.name).second,
          "two tensors of a file have the same name");
    const std::int64_t first = end;
    end += *elements_of(tensor.shape) * static_cast<std::int64_t>(sizeof(float));
    add(tensor.name, fmt::format(R"({{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                                 fmt::join(tensor.shape, ","), first, end));
  }
  std::string text = fmt::format("{{{}}}", fmt::join(entries, ","));
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(static_cast<std::int64_t>(text.size()) <= longest_header,
        "the safetensors header is longer than the format allows");
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const SafetensorsDeclaration> tensors,
                                     const SafetensorsMetadata& metadata)
    : file_(path)
{
  const std::string header = make_header(tensors, metadata);
  const std::uint64_t length = header.size();
  for (const SafetensorsDeclaration& tensor : tensors) left_ += *elements_of(tensor.shape);
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::span<const float> elements)
{
  check(std::ssize(elements) <= left_, "more elements are written than were declared");
  file_.write(std::as_bytes(elements));
  left_ -= std::ssize(elements);
}

void SafetensorsWriter::keep()
{
  check(left_ == 0, "not all elements that were declared have been written");
  file_.keep();
}

void SafetensorsWriter::close()
{
  keep();
  file_.commit();
}

}  // namespace rankwise
