#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "gpt2/checkpoint.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/published_files.hpp"

/// @file
/// Import and export of GPT-2 weights in Hugging Face's format.
///
/// Names and shapes of the tensors are those of the parameter table; the transformers library prefixes the names
/// with "transformer.". Besides the parameters a file may hold redundant tensors: the attention masks (`attn.bias`,
/// `attn.masked_bias`) and the head (`lm_head.weight`), which equals the token embedding.

namespace rankwise {

/// A GPT-2 in a safetensors file or in a folder of transformers.
class PublishedModel {
 public:
  /// Reads and checks the headers, and compares a separately stored head with the token embedding.
  /// @param path   the file or folder.
  /// @param heads  H, which no tensor's shape shows; 0: as config.json says, and for a file by itself heads of 64
  ///               channels, as in all published sizes.
  /// @throws UserError  naming the tensors that are missing, unexpected, of another shape, or not F32, F16 or BF16;
  ///                    when the head differs from the token embedding; when H does not divide C; when the tensors or
  ///                    @p heads contradict config.json.
  PublishedModel(const std::string& path, std::int64_t heads);

  /// The sizes of the model, from the shapes of its tensors.
  const ModelConfig& config() const { return config_; }
  /// Refuses weights that are not finite; reads all of them.
  /// @throws UserError  with the number of such weights, and the tensor and position of the first.
  void check_finite();
  /// Writes its weights, in blocks, to a checkpoint without moments, for `--initial`.
  /// @param path  path of the checkpoint.
  /// @failure  Error when the disk is full; no file is left.
  void save(const std::string& path);

 private:
  const SafetensorsEntry* find(const std::string& name) const { return files_.find(prefix_ + name); }
  void read_sizes(std::int64_t heads);
  void check_described(const ModelConfig& described) const;
  void check_tensors() const;
  void check_head();
  void read_part(const Parameter& p, Range run, std::span<float> to);  // elements of the run in the tensor

  std::string path_;
  PublishedFiles files_;
  std::string prefix_;
  ModelConfig config_;
};

/// Writes the weights of a checkpoint, in blocks, as a safetensors file in f32, with names in increasing order and
/// without a prefix: byte for byte the file that the safetensors library writes for the same tensors and {"format":
/// "pt"}.
/// @param checkpoint  a file that check_checkpoint() accepted.
/// @param config      the model that check_checkpoint() returned.
/// @param path        path of the safetensors file; an existing file is replaced when the new one is complete.
/// @throws UserError  when the file cannot be created. Error when the disk is full.
void publish(const std::string& checkpoint, const ModelConfig& config, const std::string& path);

/// Writes the weights to a folder that transformers loads with from_pretrained(): config.json,
/// generation_config.json, and last model.safetensors. Parameters and failures as for publish().
/// @param folder  is made if it does not exist.
void publish_folder(const std::string& checkpoint, const ModelConfig& config, const std::string& folder);

/// Refuses a checkpoint with weights that are not finite; reads all of them, but not the moments.
/// @param checkpoint  a file that check_checkpoint() accepted.
/// @param config      the model that check_checkpoint() returned.
/// @param asked       what the user asked for, such as "--initial=FILE.h5"; the message begins with it.
/// @throws UserError  with the number of such weights, and the tensor and position of the first.
void check_finite_weights(const std::string& checkpoint, const ModelConfig& config, const std::string& asked);

}  // namespace rankwise
