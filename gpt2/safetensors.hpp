#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/partition.hpp"
#include "common/files/output_file.hpp"

/// @file
/// Hugging Face's safetensors format: named tensors in one file.
///
///     8 bytes            n, the length of the header, little-endian
///     n bytes            JSON: {"__metadata__": {key: text, ...},
///                               name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
///     up to the end      the elements, row-major, little-endian; offsets count from here and leave no hole
///
/// @source  https://github.com/huggingface/safetensors, section "Format" of its README.

namespace rankwise {

/// One tensor of a safetensors file.
struct SafetensorsEntry {
  std::string name;                 ///< as "h.0.attn.c_attn.weight"
  std::string dtype;                ///< as "F32", "BF16" or "I64"
  std::vector<std::int64_t> shape;  ///< extents, outermost first; a scalar has none
  std::int64_t elements = 0;        ///< their product
  Range bytes{};                    ///< of its data, counted from the end of the header
};

/// Text that a file carries beside its tensors, as {"format": "pt"}.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// A safetensors file that has been opened for reading; its header is sound.
class SafetensorsFile {
 public:
  /// Reads and checks the header.
  /// @param path  of the file.
  /// @cost        memory in proportion to the header, which is no longer than the file, and than 100 MB.
  /// @throws UserError  when there is no such file, or its header is not one: too long, no JSON of this form, a name
  ///                    twice, an unknown dtype, data that overlap, leave a hole, end beyond the file, or do not fit
  ///                    dtype and shape. It names the tensor.
  explicit SafetensorsFile(std::string path);

  /// All tensors, in the order of their data.
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  /// What stands under "__metadata__".
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// The tensor of that name, or nullptr.
  const SafetensorsEntry* find(std::string_view name) const;

  /// Reads the elements [first, first + to.size()) of a tensor, in row-major order, as f32.
  /// @param tensor  of this file, of dtype F32, F16 or BF16, which f32 holds without loss.
  /// @param first   of its elements; all that are asked for are there.
  /// @throws UserError  for any other dtype. Error when the file has become shorter since it was opened.
  void read(const SafetensorsEntry& tensor, std::int64_t first, std::span<float> to);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::int64_t data_ = 0;  // where the data begin
  std::vector<SafetensorsEntry> tensors_;
  std::map<std::string_view, const SafetensorsEntry*> by_name_;
  SafetensorsMetadata metadata_;
};

/// A tensor that will be written.
struct SafetensorsDeclaration {
  std::string name;                 ///< no two are the same
  std::vector<std::int64_t> shape;  ///< extents, outermost first
};

/// Writes a safetensors file of F32 tensors, piece by piece; byte for byte what the safetensors library writes when it is
/// given the same tensors in increasing order of their names. The file gets its name when it is
/// complete, and vanishes when it does not come to that.
class SafetensorsWriter {
 public:
  /// Writes the header.
  /// @param path      of the file; whatever has that name is replaced by close().
  /// @param tensors   all of them, in the order in which their elements will be written.
  /// @param metadata  goes under "__metadata__" unless there is none.
  /// @throws Error  when the file cannot be made.
  SafetensorsWriter(const std::string& path, std::span<const SafetensorsDeclaration> tensors,
                    const SafetensorsMetadata& metadata = {});

  /// The next elements; they may end in the middle of a tensor, or in a later one.
  /// @throws Error  when the disk is full, or when they are more than were declared.
  void write(std::span<const float> elements);
  /// Completes the file.
  /// @throws Error  when elements are missing, or when the disk is full.
  void close();

 private:
  OutputFile file_;
  std::int64_t left_ = 0;  // elements
};

}  // namespace rankwise
