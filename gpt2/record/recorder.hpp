#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "gpt2/config.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/record/record.hpp"

/// @file
/// Notes results of a device. The building blocks of the model note activations and gradients (kernels.recorder()),
/// the frame notes sums of gradients, the loss, the norm and the updated shards.

namespace rankwise {

/// A result of a layer, one row for each token. The order is that of the forward pass.
enum class Layer : std::int64_t {
  norm,    ///< output of the layer norm
  inner,   ///< q, k and v, or the MLP's hidden layer before GELU
  hidden,  ///< outputs of the heads, or the hidden layer after GELU
  output,  ///< the branch's contribution to the residual stream, before dropout
  stream,  ///< the residual stream after the branch, or after the embedding
  logits,  ///< logits of the head
};

/// The columns of whole rows that a tensor has.
struct RecordedColumns {
  Part part{};                ///< this shard of each section
  std::int64_t sections = 1;  ///< runs of columns that are divided separately: 3 for q, k and v
  std::int64_t whole = 0;     ///< columns of a whole section without padding; 0: all
};

/// Content of a shard of the state.
enum class State : std::int64_t { parameter, first_moment, second_moment };

/// The notes of one device.
class Recorder {
 public:
  /// @param stream    stream of the device that computes; outlives this.
  /// @param config    the model.
  /// @param G         sequences of the global batch.
  /// @param T         tokens of a sequence.
  /// @param runs      true if gradients are noted by micro-batch, which is meaningful where each one has sums of its own,
  ///                  as in exact arithmetic.
  /// @param device    number of the device in the run.
  /// @param values    patterns of the names whose values are kept too, with commas between.
  Recorder(Stream& stream, const ModelConfig& config, std::int64_t G, std::int64_t T, bool runs, int device,
           const std::string& values);

  /// Begins a step: later notes belong to it.
  void begin_step(std::int64_t step) { step_ = step; }

  /// Notes rows of a unit, an activation or its gradient, sequence by sequence. Gradients of the stream are those of the
  /// rows that enter the unit.
  /// @param phase   forward or backward.
  /// @param unit    unit of the parameter table.
  /// @param values  (rows.count(), columns of this shard). Normalised rows are not noted if this rank has only its
  ///                own.
  void rows(StepPhase phase, std::int64_t unit, Layer layer, const Tensor& values, const Rows& rows,
            const RecordedColumns& columns);
  /// Notes the gradient of a tensor from the sequences of a micro-batch.
  /// @param number  number of the tensor in the unit, in the order of the table; -1: the token embedding's, from
  ///                the head.
  /// @param part    tensor-parallel shard of the unit.
  void gradient(std::int64_t unit, int number, const Tensor& values, const Rows& rows, Part part);
  /// Notes a shard of all gradients, parameters or moments.
  /// @param table  table of the flat vector, of which the shard has the elements @p owned.
  void shard(StepPhase phase, State state, const ParameterTable& table, Range owned, const Tensor& values);
  /// Notes a number that is the same on all devices.
  void number(const std::string& name, double value);

  /// The notes so far, which are taken away.
  std::vector<RecordEntry> take_entries();
  /// The values so far, which are taken away.
  std::vector<RecordedValues> take_values();

 private:
  const ParameterTable& table_of(Part part);
  void add(const RecordEntry& entry, const std::string& name, std::vector<float> values);
  void parameter(StepPhase phase, std::int64_t order, const std::string& name, Range sequences,
                 const ParameterTable& table, const Parameter& p, Range elements, const float* values);

  Stream& stream_;
  ModelConfig config_;
  std::int64_t G_, T_ = 0;
  bool runs_;
  std::int64_t device_, step_ = 0;
  std::vector<std::string> patterns_;
  std::map<std::string, std::int64_t> number_of_;         // number of each name
  std::map<std::pair<int, int>, ParameterTable> tables_;  // by index and number of tensor-parallel shards
  std::vector<RecordEntry> entries_;
  std::vector<RecordedValues> values_;
};

}  // namespace rankwise
