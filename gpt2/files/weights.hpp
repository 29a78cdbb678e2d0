#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpt2/config.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "gpt2/files/published_files.hpp"
#include "gpt2/files/published_names.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// Import and export of the weights of a GPT-2 or a BERT in Hugging Face's format.
///
/// published_names.hpp says which tensors hold a parameter. Besides them a file may have redundant ones: attention
/// masks, position numbers, and copies of tied tensors, such as GPT-2's head (`lm_head.weight`), which equals the token
/// embedding.

namespace rankwise {

/// A GPT-2 or a BERT in a safetensors file or in a folder of transformers.
class PublishedModel {
 public:
  /// Reads and checks the headers, and compares copies of tied tensors with their originals.
  /// @param path   the file or folder.
  /// @param heads  H, which no tensor's shape shows; 0: as config.json says, and for a file by itself heads of 64
  ///               channels, as in all published sizes.
  /// @throws UserError  naming the tensors that are missing, unexpected, of another shape, or not F32, F16 or BF16;
  ///                    when a copy differs; when H does not divide C; when the tensors or @p heads contradict
  ///                    config.json.
  PublishedModel(const std::string& path, std::int64_t heads);

  /// The sizes of the model, from the shapes of its tensors.
  const ModelConfig& config() const { return config_; }
  /// Refuses weights that are not finite; reads all of them.
  /// @throws UserError  with the number of such weights, and the tensor and position of the first.
  void check_finite();
  /// Writes its weights, in blocks, to a checkpoint without moments, for `--initial`. Tensors in another layout than the
  /// table's are held whole, one parameter at a time.
  /// @param path  path of the checkpoint.
  /// @failure  Error when the disk is full; no file is left.
  void save(const std::string& path);

 private:
  const PublishedNames& names() const { return published_names(config_.architecture); }
  [[noreturn]] void refuse(const std::string& why) const;
  const SafetensorsEntry* find(const std::string& name) const;
  void for_each_tensor(const ParameterTable& table,
                       const std::function<void(const PublishedTensor&, const SafetensorsEntry*)>& work) const;
  void read_sizes(std::int64_t heads);
  void check_described(const ModelConfig& described) const;
  void check_tensors() const;
  void check_tied(const std::string& copy, const std::string& original);
  void read_part(const Parameter& p, Range run, std::span<float> to);  // elements of the run in the parameter

  std::string path_;
  PublishedFiles files_;
  std::string prefix_;
  ModelConfig config_;
  std::vector<float> converted_;  // last parameter that had another layout
  int converted_number_ = -1;     // its number in the table
};

/// Writes the weights of a checkpoint, in blocks or tensor by tensor, as a safetensors file in f32, with names in increasing order and
/// without a prefix: byte for byte the file that the safetensors library writes for the same tensors and {"format":
/// "pt"}.
/// @param checkpoint  a file that check_checkpoint() accepted.
/// @param config      the model that check_checkpoint() returned.
/// @param path        path of the safetensors file; an existing file is replaced when the new one is complete.
/// @throws UserError  when the file cannot be created. Error when the disk is full.
/// @param before_rename  is called when all is written, and only the name is missing.
void publish(
    const std::string& checkpoint, const ModelConfig& config, const std::string& path,
    const std::function<void()>& before_rename = [] {});

/// Writes the weights to an existing folder that transformers loads with from_pretrained(): model.safetensors, config.json, and
/// generation_config.json for a GPT-2; a BERT's folder loses one that was there. Parameters and failures as for publish().
/// A run that is killed leaves the old files, the new ones, or a folder without config.json.
void publish_folder(const std::string& checkpoint, const ModelConfig& config, const std::filesystem::path& folder);

/// Refuses a checkpoint with weights that are not finite; reads all of them, but not the moments.
/// @param checkpoint  a file that check_checkpoint() accepted.
/// @param config      the model that check_checkpoint() returned.
/// @param asked       the option, such as "--initial=FILE.h5"; the message begins with it.
/// @throws UserError  with the number of such weights, and the tensor and position of the first.
void check_finite_weights(const std::string& checkpoint, const ModelConfig& config, const std::string& asked);

}  // namespace rankwise
