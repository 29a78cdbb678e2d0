#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpt2/config.hpp"
#include "gpt2/files/safetensors.hpp"

/// @file
/// The files of a published GPT-2 or BERT: one safetensors file, or a folder as transformers saves it.
///
///     config.json                     the sizes of the model, and which variant of it this is
///     model.safetensors               all tensors, or
///     model.safetensors.index.json    {"weight_map": {name of a tensor: name of its file, ...}}
///     model-00001-of-00002.safetensors ...
///     generation_config.json          constants of sampling; written for a GPT-2, not read

namespace rankwise {

/// The tensors of a published model, in one file or several.
class PublishedFiles {
 public:
  /// Reads and checks the headers, and in a folder config.json and the index.
  /// @param path  a safetensors file, or a folder.
  /// @throws UserError  when a file is missing or invalid; for weights in another format, as pickles; when config.json
  ///                    describes another model; when index and files contradict each other.
  explicit PublishedFiles(const std::string& path);

  /// All tensors, file by file.
  const std::vector<const SafetensorsEntry*>& tensors() const { return tensors_; }
  /// The tensor with this name, or nullptr.
  const SafetensorsEntry* find(std::string_view name) const;
  /// Reads elements of a tensor of these files; as SafetensorsFile::read().
  void read(const SafetensorsEntry& tensor, std::int64_t first, std::span<float> to);
  /// The sizes that config.json gives; nothing for a file by itself.
  const std::optional<ModelConfig>& sizes() const { return sizes_; }

 private:
  void open(const std::string& path);
  void open_folder(const std::filesystem::path& folder);
  void open_shards(const std::filesystem::path& folder);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<const SafetensorsEntry*> tensors_;
  std::map<std::string_view, std::pair<SafetensorsFile*, const SafetensorsEntry*>> by_name_;
  std::optional<ModelConfig> sizes_;
};

/// The sizes and the architecture in a config.json.
/// @throws UserError  when it is not the description of a GPT-2 or a BERT as this project computes it.
ModelConfig read_model_config(const std::string& path);

/// The texts, by file name, with which transformers loads the model: config.json, and for a GPT-2 generation_config.json.
std::map<std::string, std::string> model_descriptions(const ModelConfig& config);

/// True if a name means a folder: one that exists, or a name without an extension, as "gpt2-tuned".
bool names_folder(const std::string& path);

}  // namespace rankwise
