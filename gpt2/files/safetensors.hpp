#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/files/output_file.hpp"

/// @file
/// Hugging Face's safetensors format: named tensors in one file.
///
///     8 bytes            n, the length of the header, little-endian
///     n bytes            JSON: {"__metadata__": {key: text, ...},
///                               name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
///     up to the end      the elements, row-major, little-endian; offsets count from here and leave no gap
///
/// @source  https://github.com/huggingface/safetensors, section "Format" of its README.

namespace rankwise {

/// One tensor of a safetensors file.
struct SafetensorsEntry {
  std::string name;                 ///< such as "h.0.attn.c_attn.weight"
  std::string dtype;                ///< such as "F32", "BF16" or "I64"
  std::vector<std::int64_t> shape;  ///< extents, outermost first; a scalar has none
  std::int64_t elements = 0;        ///< their product
  Range bytes{};                    ///< position of its data, counted from the end of the header
};

/// Text that a file carries beside its tensors, such as {"format": "pt"}.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// A safetensors file opened for reading, with a valid header.
class SafetensorsFile {
 public:
  /// Reads and checks the header.
  /// @param path  path of the file.
  /// @cost        memory in proportion to the header, which is at most as long as the file and at most 100 MB.
  /// @throws UserError  when there is no such file, or its header is invalid: too long, not JSON of this form, a
  ///                    name twice, an unknown dtype, data that overlap, leave a gap, end after the end of the
  ///                    file, or do not match dtype and shape. It names the tensor.
  explicit SafetensorsFile(std::string path);

  /// All tensors, in the order of their data.
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }

  /// Reads the elements [first, first + to.size()) of a tensor, in row-major order, as f32.
  /// @param tensor  a tensor of this file, of dtype F32, F16 or BF16, which convert to f32 without loss.
  /// @param first   index of the first element; the whole range must be inside the tensor.
  /// @throws UserError  for any other dtype. Error when the file has become shorter since it was opened.
  void read(const SafetensorsEntry& tensor, std::int64_t first, std::span<float> to);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::int64_t data_ = 0;  // offset of the data in the file
  std::vector<SafetensorsEntry> tensors_;
};

/// A tensor that will be written.
struct SafetensorsDeclaration {
  std::string name;                 ///< unique name
  std::vector<std::int64_t> shape;  ///< extents, outermost first
};

/// Writes a safetensors file of F32 tensors incrementally. The file is byte for byte the one that the safetensors
/// library writes for the same tensors in increasing order of their names. It gets its name when it is complete; an
/// incomplete file is removed.
class SafetensorsWriter {
 public:
  /// Writes the header.
  /// @param path      path of the file; close() replaces an existing file.
  /// @param tensors   all tensors, in the order in which their elements will be written.
  /// @param metadata  entries of "__metadata__", which is left out when there are none.
  /// @throws Error  when the file cannot be created.
  SafetensorsWriter(const std::string& path, std::span<const SafetensorsDeclaration> tensors,
                    const SafetensorsMetadata& metadata = {});

  /// Writes the next elements; they may end in the middle of a tensor, or in a later one.
  /// @throws Error  when the disk is full, or when there are more elements than were declared.
  void write(std::span<const float> elements);
  /// Completes the file under its temporary name, for callers that give it its name later.
  /// @throws Error  when elements are missing, or when the disk is full.
  void keep();
  /// Completes the file, and gives it its name. Throws as keep().
  void close();

 private:
  OutputFile file_;
  std::int64_t left_ = 0;  // elements still to be written
};

}  // namespace rankwise
