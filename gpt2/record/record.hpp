#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpt2/config.hpp"
#include "gpt2/record/condensed.hpp"

/// @file
/// Record of the results of a run, number by number, and its file.

namespace rankwise {

/// The name in the seal of a record.
inline constexpr std::string_view record_seal = "rankwise record";

/// The parts of a training step, in their order.
enum class StepPhase : std::int64_t { forward, backward, sums, norm, update };
/// "forward", "backward", "gradients summed", "loss and norm", "update".
std::string name_of(StepPhase phase);

/// One device's part of a tensor: all devices that had the same part have an entry each.
struct RecordEntry {
  std::int64_t step = 0;    ///< optimizer step
  StepPhase phase{};        ///< part of the step
  std::int64_t order = 0;   ///< place in the order of computation, within the phase
  std::int64_t tensor = 0;  ///< index in record_names()
  Range sequences{};  ///< sequences of the global batch that were computed with; for a sum over the batch, all
  Range rows{};       ///< rows of the whole tensor; of parameters, elements of the stored shard
  Range columns{};    ///< columns of each of its sections
  std::int64_t device = 0;  ///< number of the device that had it: its rank
  Condensed value{};        ///< digest of its values
};

/// Values of a part of a tensor, with --record-values.
struct RecordedValues {
  RecordEntry entry;          ///< whose values these are
  std::vector<float> values;  ///< row by row; the columns of all sections make up a row
};

/// All that a run has recorded.
struct Record {
  std::int64_t devices = 1;          ///< N
  bool exact = false;                ///< true if all sums were those of exact arithmetic
  bool rounded = false;              ///< true if values were rounded to bf16
  std::int64_t global_batch = 0;     ///< G
  double dropout = 0;                ///< dropout rate
  std::vector<std::string> names;    ///< record_names()
  std::vector<RecordEntry> entries;  ///< entries of all devices
  std::vector<std::int64_t>
      sizes{};  ///< sizes that the shapes of tensors depend on: channels, vocabulary, tokens of a sequence
};

/// Names of everything that a run of a model records.
std::vector<std::string> record_names(const ModelConfig& config);

/// Replaces a file by a sealed record with one more step, so that a run that fails or is killed later leaves it.
/// @param first    true if the record begins with this step; else the file has the steps before.
/// @param step     entries of it.
/// @param values   values of it.
/// @cost     copies and reads the file.
/// @failure  Error  if that is not possible; the file is kept as it was.
void write_step(const std::string& path, const Record& record, bool first, std::span<const RecordEntry> step,
                std::span<const RecordedValues> values);
/// Reads the file of --record, without its values.
/// @throws UserError  if it is none, or is damaged.
Record read_record(const std::string& path);

}  // namespace rankwise
