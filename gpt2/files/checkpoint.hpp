#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "data/loader.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// Checkpoints: one sealed HDF5 file holds one logical model, independent of the layout that wrote it.
///
///     /parameters/wte.weight     (V, C) f32, one dataset per tensor, under Hugging Face's name, without padding
///     /first_moments/...         the same names and shapes; not in a file of weights only
///     /second_moments/...
///     /digests/parameters, ...   (tensors) i64 for each of these groups: placed_digest() of every tensor
///     /options                   a text attribute for each option that decides what the run computes
///     attributes of /            layers, heads, channels, context, vocabulary; step, updates; architecture, if it is
///                                not a GPT-2
///
/// The step number and the seed determine a step's batch and its dropout masks, so the step is the only state of
/// the data loader and of the random numbers that has to be saved.
///
/// Each rank writes the shards that it holds: create_checkpoint() is called once, write_checkpoint() by each holder
/// in turn, commit_checkpoint() once. The file gets its name last; until then the previous checkpoint remains.
///
/// Each holder adds the digests of the data that it is about to write to those in the file. Before the file gets
/// its name, all of it is read again and its digests are compared: this finds elements that were lost, written
/// twice or never written.

namespace rankwise {

/// The name in the seal of a checkpoint.
inline constexpr std::string_view checkpoint_seal = "rankwise checkpoint";

/// An option that decides what a run computes, such as `learning-rate` and `0.001`.
struct RunOption {
  std::string name;   ///< name of the option; data-sha256 and data-tokenizer for the data
  std::string value;  ///< value as text from which the same number is read back
};

/// The options that decide what a run computes. Options that only decide how it is computed (micro-batch,
/// recomputation, threads, arithmetic, layout) are left out, and so is the number of steps unless the learning rate
/// depends on it.
/// @param options  as parsed.
/// @param tokens   the data of the run.
std::vector<RunOption> run_options(const TrainingOptions& options, const Tokens& tokens);

/// Description of the run that a checkpoint belongs to.
struct CheckpointInfo {
  ModelConfig config;                   ///< sizes; the mask is among the options
  bool moments = true;                  ///< true if the file has the moments; without them it holds weights only
  std::int64_t step = 0;                ///< optimizer steps made: the number of the next step
  std::int64_t updates = 0;             ///< updates of AdamW, for its bias correction
  std::vector<RunOption> options = {};  ///< options of the run
};

/// A range of a model's flat vectors, and the tensors that hold it. Empty tensors are neither written nor read.
struct Shard {
  const ParameterTable& table;  ///< table of the flat vectors: of the whole model, or of a shard or stage of it
  Range owned;                  ///< elements of the flat vectors
  Tensor parameters;            ///< (owned.count) f32, on any device
  Tensor first_moments;         ///< (owned.count) f32
  Tensor second_moments;        ///< (owned.count) f32

  /// A part of it, if all three tensors are there.
  /// @param part  counted from its first element.
  Shard slice(Range part) const
  {
    return {table,
            {owned.first + part.first, part.count},
            parameters.slice(part),
            first_moments.slice(part),
            second_moments.slice(part)};
  }
};

/// True if a checkpoint is due after @p made of @p last steps.
bool checkpoint_is_due(const TrainingOptions& options, std::int64_t made, std::int64_t last);

/// Begins the checkpoint @p path: creates its temporary file with all datasets and attributes.
/// @failure  Error when the disk is full or the folder cannot be written; no file is left.
void create_checkpoint(const std::string& path, const CheckpointInfo& info);
/// Writes a shard to the checkpoint that was begun, in blocks of about 1 MiB, so that no second copy of the shard
/// is needed. Each element of the model is written once, in one shard.
/// @param path    as for create_checkpoint().
/// @param stream  copies blocks to the host.
/// @param shard   may begin and end inside a tensor or a row; padding is left out.
/// @failure  Error; the temporary file is removed.
void write_checkpoint(const std::string& path, Stream& stream, const Shard& shard);
/// Completes the checkpoint once all shards are written: seals the file, flushes it to disk and gives it its name.
/// @cost     reads the file twice.
/// @failure  Error, also when a tensor differs from the written one; the temporary file is removed, and an existing
///           checkpoint of that name remains.
void commit_checkpoint(const std::string& path);

/// Checks that a checkpoint is undamaged and has every tensor of its model in the right shape; returns its
/// description.
/// @param path   the file.
/// @param asked  the option that names it, such as "--initial=gpt2.h5".
/// @throws UserError  for any other file.
CheckpointInfo check_checkpoint(const std::string& path, const std::string& asked);
/// The sizes of the model that a file describes.
/// @throws Error  when it is no such file; nothing but the description is checked.
ModelConfig checkpoint_sizes(const std::string& path);

/// Reads a shard from a checkpoint, in blocks of about 1 MiB. Padding becomes zero.
/// @param path    a file that check_checkpoint() accepted.
/// @param stream  copies blocks to the device.
/// @param shard   elements of the file's model to read, and their destination.
/// @failure  Error.
void read_checkpoint(const std::string& path, Stream& stream, const Shard& shard);

/// Takes the sizes of the model from the file of `--initial`, unless `--model` is given. A size that the user gave
/// stays, and check_checkpoints() compares it with the file. It also refuses a file of which no sizes can be read.
/// @param options  as parsed.
/// @param table    their table.
void take_initial_sizes(TrainingOptions& options, const OptionTable& table);

/// Checks the files that `--checkpoint`, `--resume` and `--initial` name.
/// @param options  checked by check_options().
/// @param tokens   the data of the run; needed only to resume.
/// @throws UserError  when a file is missing or damaged, belongs to another model or another run (naming what
///                    differs) or to a run without steps left, or would be replaced by a new run; when initial
///                    weights are not finite.
void check_checkpoints(const TrainingOptions& options, const Tokens& tokens);

}  // namespace rankwise
