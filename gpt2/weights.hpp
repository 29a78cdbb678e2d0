#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "gpt2/checkpoint.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/safetensors.hpp"

/// @file
/// GPT-2's weights from and to Hugging Face's files.
///
/// Their names and shapes are those of the parameter table; programs of the transformers library put "transformer." in
/// front. Besides weights such a file may hold what follows from them: attention's masks (`attn.bias`,
/// `attn.masked_bias`) and the head (`lm_head.weight`), which is the token embedding again.

namespace rankwise {

/// A safetensors file that holds a GPT-2.
class PublishedModel {
 public:
  /// Reads and checks the header, and a head that is stored apart.
  /// @param path   the file.
  /// @param heads  H, which no tensor tells; 0 for heads of 64 channels, as all published sizes have.
  /// @throws UserError  naming the tensors that are missing, too many, of another shape, or not F32, F16 or BF16; when
  ///                    the head is another matrix than the token embedding; when H does not divide C.
  PublishedModel(const std::string& path, std::int64_t heads);

  /// The sizes that its tensors have.
  const ModelConfig& config() const { return config_; }
  /// Refuses weights that are not finite; it reads all of them.
  /// @throws UserError  with their number, and the tensor and position of the first.
  void check_finite();
  /// Writes its weights to a checkpoint without moments, in blocks; for `--initial`.
  /// @param path  of the checkpoint.
  /// @failure  Error when the disk is full; nothing is left.
  void save(const std::string& path);

 private:
  const SafetensorsEntry* find(const std::string& name) const { return file_.find(prefix_ + name); }
  void read_sizes(std::int64_t heads);
  void check_tensors() const;
  void check_head();
  void read_part(const Parameter& p, Range run, std::span<float> to);  // what of the run is of the tensor

  std::string path_;
  SafetensorsFile file_;
  std::string prefix_;
  ModelConfig config_;
};

/// Writes the weights of a checkpoint as a safetensors file in f32, names in increasing order and without a prefix, in
/// blocks: byte for byte what the safetensors library makes of the same tensors and {"format": "pt"}.
/// @param checkpoint  a file that check_checkpoint() has passed.
/// @param config      what that said of its model.
/// @param path        of the safetensors file; replaced when it is complete.
/// @throws UserError  when that cannot be made. Error when the disk is full.
void publish(const std::string& checkpoint, const ModelConfig& config, const std::string& path);

/// Refuses a checkpoint with weights that are not finite; it reads all of them. Moments are not looked at.
/// @param checkpoint  a file that check_checkpoint() has passed.
/// @param config      what that said of its model.
/// @param asked       what the user asked for, as "--initial=FILE.h5"; the message begins with it.
/// @throws UserError  with their number, and the tensor and position of the first.
void check_finite_weights(const std::string& checkpoint, const ModelConfig& config, const std::string& asked);

}  // namespace rankwise
