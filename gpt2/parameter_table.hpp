#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "common/memory/tensor.hpp"
#include "gpt2/config.hpp"

/// @file
/// The parameter table: the only place that knows which parameters there are and where they lie.

namespace rankwise {

/// How tensor parallelism divides a tensor among n parts.
enum class Split : std::uint8_t {
  none,     ///< every part has all of it
  rows,     ///< part i has the i-th of n equal runs of rows
  columns,  ///< part i has the i-th of n equal runs of columns of each section (q, k and v are sections)
};

/// What a parameter is before training.
enum class Initial : std::uint8_t {
  zero,      ///< biases
  one,       ///< norm weights
  normal,    ///< N(0, 0.02)
  residual,  ///< N(0, 0.02 / sqrt(2 L)): weights that write to the residual stream
};

/// One tensor of the model.
struct Parameter {
  std::string name;           ///< Hugging Face's, as "h.0.attn.c_attn.weight"
  Shape shape;                ///< of the whole tensor, without padding: (rows, columns) or (columns)
  Shape stored;               ///< of what this part stores, padding included
  int number = 0;             ///< place in the table of the whole model; keys the initial values
  int unit = 0;               ///< 0 embedding, 1 + i branch i, 2 L + 1 head
  Range elements{};           ///< where it lies in this table's flat vector
  bool decays = false;        ///< whether AdamW's weight decay applies: matrices only
  Initial initial{};          ///< what it is before training
  Split split = Split::none;  ///< how tensor parallelism divides it
  int sections = 1;           ///< runs of columns that are divided one by one
};

/// A rectangle of a tensor: where it stands in the whole tensor, and where this part stores it. Tensors of one
/// dimension are one row.
struct Slab {
  Range rows;                      ///< of the whole tensor
  Range columns;                   ///< of the whole tensor
  std::int64_t stored_row = 0;     ///< of the first element, in the stored tensor
  std::int64_t stored_column = 0;  ///< of the first element, in the stored tensor
};

/// All tensors of a run of units of a GPT-2, in the order of Hugging Face's checkpoints, laid out without gaps in one
/// flat vector. The tensors of a unit are neighbours, and so are those of a block; small tensors may be replicated from them,
/// behind all others.
class ParameterTable {
 public:
  /// @param config  the model.
  /// @param part    which part of every tensor that tensor parallelism divides.
  /// @param units   which units, from the embedding (0) over the 2 L branches to the head (2 L + 1); all by default.
  /// @param replicated   tensors of at most so many elements are replicated.
  /// @throws Error  when heads cannot be dealt out in equal shares.
  explicit ParameterTable(const ModelConfig& config, Part part = {}, Range units = {0, -1},
                          std::int64_t replicated = 0);

  /// The tensors, in order.
  const std::vector<Parameter>& entries() const { return entries_; }
  /// Elements of the flat vector, padding of the vocabulary included.
  std::int64_t elements() const { return elements_; }
  /// The units of this table.
  Range units() const { return units_; }
  /// Where the tensors of @p unit lie in the flat vector, but those that are replicated; empty for a unit of another table.
  Range unit_elements(int unit) const;
  /// Where those lie that are replicated: at its end.
  Range replicated() const { return replicated_; }
  /// The rectangles that this part stores of @p parameter; padding belongs to none.
  std::vector<Slab> slabs(const Parameter& parameter) const;

 private:
  void add_embedding(const ModelConfig& config);
  void add_branch(const ModelConfig& config, int branch);
  void add_head(const ModelConfig& config);
  void add(Parameter parameter);
  void lay_out(std::int64_t replicated);

  Part part_;
  Range units_;
  int next_number_ = 0;
  std::int64_t elements_ = 0;
  Range replicated_{};
  std::vector<Parameter> entries_;
};

/// The parameters of the embedding, or their gradients.
struct EmbeddingTensors {
  Tensor token;     ///< (V, C) wte, tied to the head
  Tensor position;  ///< (context, C) wpe
};

/// The parameters of an attention or MLP branch, or their gradients. F = 3 C (q, k, v) or 4 C (hidden layer).
struct BranchTensors {
  Tensor norm_weight;  ///< (C)
  Tensor norm_bias;    ///< (C)
  Tensor in_weight;    ///< (C, F) c_attn or c_fc
  Tensor in_bias;      ///< (F)
  Tensor out_weight;   ///< (C or 4 C, C) c_proj
  Tensor out_bias;     ///< (C)
};

/// The parameters of the head, or their gradients.
struct HeadTensors {
  Tensor norm_weight;  ///< (C)
  Tensor norm_bias;    ///< (C)
  Tensor token;        ///< (V, C) wte again; of gradients, possibly a buffer of its own
};

/// All parameters of a model, or their gradients, as views of one flat vector.
struct ModelTensors {
  EmbeddingTensors embedding;           ///< unit 0
  std::vector<BranchTensors> branches;  ///< units 1 .. 2 L
  HeadTensors head;                     ///< unit 2 L + 1
};

/// Views of the tensors of a unit, in order.
/// @param table  a table that has the unit.
/// @param flat   the elements of that unit alone, unit_elements(unit).
/// @param replicated  those that are replicated, table.apart().
std::vector<Tensor> unit_tensors(const ParameterTable& table, int unit, const Tensor& flat,
                                 const Tensor& replicated = {});
/// The tensors of unit 0 by their names.
/// @param tensors  of unit_tensors().
EmbeddingTensors embedding_tensors(const std::vector<Tensor>& tensors);
/// The tensors of a unit 1 .. 2 L by their names.
/// @param tensors  of unit_tensors().
BranchTensors branch_tensors(const std::vector<Tensor>& tensors);
/// The tensors of unit 2 L + 1 by their names.
/// @param tensors  of unit_tensors().
/// @param token    the (V, C) tensor tied to the embedding.
HeadTensors head_tensors(const std::vector<Tensor>& tensors, const Tensor& token);
/// Views of a whole model.
/// @param table  a table of all units, none of whose tensors is replicated.
/// @param flat   (table.elements()).
/// @param tied   (V C) where the head's part of the token embedding's gradient is kept apart; empty: in @p flat.
ModelTensors model_tensors(const ParameterTable& table, const Tensor& flat, const Tensor& tied = {});

/// Fills @p flat with initial parameters: all of a table, or a run of them. An element's value depends on the seed, its
/// tensor's number and its place in the whole tensor, so every layout starts from the same model. Padding is zero.
/// @param      stream copies each tensor to its place, so that @p flat may lie on any device.
/// @param[out] flat   (n) f32, bf16 or f64: elements [first, first + n) of the flat vector.
/// @param      table  which parameters these are.
/// @param      config the model.
/// @param      seed   chooses the values.
/// @param      first  of the elements.
/// @source     Radford et al. 2019, section 2.3.
void initialize_parameters(Stream& stream, const Tensor& flat, const ParameterTable& table,
                           const ModelConfig& config, std::uint32_t seed, std::int64_t first = 0);

/// SHA-256 over all parameters in table order, as f32 little-endian, padding left out.
/// @param stream copies each tensor to the host.
/// @param table  a table of all units, whole tensors.
/// @param flat   (table.elements()) f32.
std::string parameter_digest(Stream& stream, const ParameterTable& table, const Tensor& flat);

}  // namespace rankwise
