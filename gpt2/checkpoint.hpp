#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "data/loader.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// Checkpoints: one sealed HDF5 file is one logical model, whoever wrote it.
///
///     /parameters/wte.weight     (V, C) f32, one dataset a tensor, under Hugging Face's name, without padding
///     /first_moments/...         the same names and shapes; not in a file of weights only
///     /second_moments/...
///     /digests/parameters, ...   (tensors) i64 for each of these groups: placed_digest() of every tensor
///     /options                   a text attribute for each option that decides what the run computes
///     attributes of /            layers, heads, channels, context, vocabulary; step, updates
///
/// A step reads the batch that its number and the seed say, and masks are keyed by the step: so the step is all that
/// there is to know of where a run stands.
///
/// Each rank writes the shards that it holds: create_checkpoint() once, write_checkpoint() by each holder, one at a time,
/// commit_checkpoint() once. The file gets its name last; until then the one before it stays.
///
/// Each holder adds the digests of what it means to write to those in the file. Before the file gets its name all of it is
/// read again: an element that was lost, written twice or never written shows.

namespace rankwise {

/// An option that decides what a run computes, as `learning-rate` and `0.001`.
struct RunOption {
  std::string name;   ///< of the option; data-sha256 and data-tokenizer for the data
  std::string value;  ///< as text that gives back the same number
};

/// The options that decide what a run computes. Those that only decide how (micro-batch, recomputation, threads,
/// arithmetic, layout) are not among them, and neither is the number of steps where the learning rate does not depend on
/// it.
/// @param options  as parsed.
/// @param tokens   the data of the run.
std::vector<RunOption> run_options(const TrainingOptions& options, const Tokens& tokens);

/// What a checkpoint says of its run.
struct CheckpointInfo {
  ModelConfig config;                   ///< sizes; the mask is among the options
  bool moments = true;                  ///< whether the moments are there; without them the file holds weights only
  std::int64_t step = 0;                ///< optimizer steps made: the number of the next one
  std::int64_t updates = 0;             ///< of AdamW, which its bias correction depends on
  std::vector<RunOption> options = {};  ///< of the run
};

/// A range of a model's flat vectors, and where it is held. What is empty is neither written nor read.
struct Shard {
  const ParameterTable& table;  ///< of the model or of the part of it to which the flat vectors belong
  Range owned;                  ///< elements of the flat vectors
  Tensor parameters;            ///< (owned.count) f32, on any device
  Tensor first_moments;         ///< (owned.count) f32
  Tensor second_moments;        ///< (owned.count) f32
};

/// Whether a checkpoint is to be saved when @p made of @p last steps are made.
bool checkpoint_is_due(const TrainingOptions& options, std::int64_t made, std::int64_t last);

/// Begins the checkpoint @p path: makes its temporary file, with all datasets and attributes.
/// @failure  Error when the disk is full or the folder cannot be written; nothing is left.
void create_checkpoint(const std::string& path, const CheckpointInfo& info);
/// Writes a shard into the checkpoint that was begun, in blocks of about 1 MiB: there is no second copy of the shard. Each
/// element of the model is written once, in one shard.
/// @param path    as for create_checkpoint().
/// @param stream  copies blocks to the host.
/// @param shard   shards may cut through tensors and rows; padding is left out.
/// @failure  Error; the temporary file is removed.
void write_checkpoint(const std::string& path, Stream& stream, const Shard& shard);
/// Gives the checkpoint its name, sealed and on the disk, when all shards are written.
/// @cost     reads the file twice.
/// @failure  Error, also when a tensor does not hold what was written; the temporary file is removed, and a checkpoint of
///           that name stays.
void commit_checkpoint(const std::string& path);

/// What a checkpoint says of its run, when the file is whole and every tensor of its model is there in its shape.
/// @param path   the file.
/// @param asked  how the user named it, as "--initial=gpt2.h5".
/// @throws UserError  for any other file.
CheckpointInfo check_checkpoint(const std::string& path, const std::string& asked);
/// Reads a shard from a checkpoint, in blocks of about 1 MiB. Padding becomes zero.
/// @param path    a file that check_checkpoint() has passed.
/// @param stream  copies blocks to the device.
/// @param shard   what to read, of the model that the file holds.
/// @failure  Error.
void read_checkpoint(const std::string& path, Stream& stream, const Shard& shard);

/// Refuses what `--checkpoint`, `--resume` and `--initial` cannot do with the files that are there.
/// @param options  as check_options() has passed them.
/// @param tokens   the data of the run.
/// @throws UserError  for a file that is missing or damaged, another model's, another run's (naming what differs), that
///                    of a run without a step left, or one that a new run would replace; for weights to start from
///                    that are not finite.
void check_checkpoints(const TrainingOptions& options, const Tokens& tokens);

}  // namespace rankwise
