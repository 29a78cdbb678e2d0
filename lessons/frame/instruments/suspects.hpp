#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpt2/record/record.hpp"

/// @file
/// Signs of a wrong number: the usual mistakes of distributed training, tried on the records of two runs.

namespace rankwise {

/// The subject of a note, in the order of computation.
struct RecordKey {
  std::int64_t step = 0;    ///< optimizer step
  StepPhase phase{};        ///< part of the step
  std::int64_t order = 0;   ///< place in the phase
  std::int64_t tensor = 0;  ///< index of the name
  Range sequences{};        ///< in the global batch

  /// The order of computation.
  bool operator<(const RecordKey& other) const { return tuple() < other.tuple(); }
  /// True if both are of the same tensor in the same place of the same step.
  bool same_tensor(const RecordKey& other) const
  {
    return step == other.step && phase == other.phase && order == other.order && tensor == other.tensor;
  }
  /// Its members.
  std::tuple<std::int64_t, StepPhase, std::int64_t, std::int64_t, std::int64_t, std::int64_t> tuple() const
  {
    return {step, phase, order, tensor, sequences.first, sequences.count};
  }
};

/// The notes of all ranks about the same tensor.
struct MergedNote {
  Condensed sum;                                                          ///< the whole tensor's
  std::vector<const RecordEntry*> parts;                                  ///< all ranks'
  std::vector<std::pair<const RecordEntry*, const RecordEntry*>> copies;  ///< the same part on two ranks
};

/// A record by what its notes are about.
struct MergedRecord {
  /// @param record  outlives it.
  explicit MergedRecord(const Record& record);

  const Record& record;                   ///< the run's
  std::map<RecordKey, MergedNote> notes;  ///< in the order of computation
};

/// "sequences 4 to 7", "sequence 3", of runs in ascending order.
std::string text_of(const std::vector<Range>& runs);

/// Explanations of the first difference, a sentence each; a single sentence that says so if nothing explains it.
std::vector<std::string> suspects(const MergedRecord& right, const MergedRecord& other, const RecordKey& key);

}  // namespace rankwise
