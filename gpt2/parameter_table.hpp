#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "common/memory/tensor.hpp"
#include "gpt2/config.hpp"

/// @file
/// The parameter table: the only place that knows which parameters a model has and where each is stored.

namespace rankwise {

/// Division of a tensor among n tensor-parallel ranks.
enum class Split : std::uint8_t {
  none,     ///< replicated: every rank has all of it
  rows,     ///< rank i has the i-th of n equal runs of rows
  columns,  ///< rank i has the i-th of n equal runs of columns of each section (q, k and v are sections)
};

/// The initial value of a parameter.
enum class Initial : std::uint8_t {
  zero,      ///< biases
  one,       ///< norm weights
  normal,    ///< N(0, 0.02)
  residual,  ///< N(0, 0.02 / sqrt(2 L)): weights that write to the residual stream
};

/// One tensor of the model.
struct Parameter {
  std::string name;     ///< name in Hugging Face's checkpoints, such as "h.0.attn.c_attn.weight"; BERT's q, k, v
                        ///< are one tensor, "...attention.self.qkv.weight" (published_names.hpp)
  Shape shape;          ///< shape of the whole tensor, without padding: (rows, columns) or (columns)
  Shape stored;         ///< shape of the tensor-parallel shard that is stored here, padding included
  int number = 0;       ///< index in the table of the whole model; keys the initial values
  int unit = 0;         ///< table unit: 0 embedding, 1 + i branch i, 2 L + 1 head
  Range elements{};     ///< its elements of this table's flat vector
  bool decays = false;  ///< true if AdamW's weight decay applies: matrices only
  bool frozen = false;  ///< true if training leaves it unchanged
  Initial initial{};    ///< initial value
  Split split = Split::none;  ///< its division by tensor parallelism
  int sections = 1;           ///< runs of columns that are divided separately: 3 for q, k, v
  int expert = -1;            ///< number of the expert that it belongs to; -1: every token meets it
  bool one_product = false;   ///< true if the backward pass begins its gradient with one matrix product
};

/// A rectangle of a tensor: its position in the whole tensor and in the shard that is stored here. A tensor of one
/// dimension is one row.
struct Slab {
  Range rows;                      ///< rows of the whole tensor
  Range columns;                   ///< columns of the whole tensor
  std::int64_t stored_row = 0;     ///< row of the first element in the stored tensor
  std::int64_t stored_column = 0;  ///< column of the first element in the stored tensor
};

/// All tensors of a run of units of a model, in the order of Hugging Face's checkpoints, laid out without gaps in
/// one flat vector. A GPT-2 and a BERT have the same units: the embedding, 2 L branches, the head. The tensors of a
/// unit are contiguous, and so are those of a block. Small tensors may be moved to the end of the vector, because they
/// are replicated where all others are sharded; experts are at the end too, expert by expert, because an
/// expert-parallel rank stores some of them and all of the rest.
class ParameterTable {
 public:
  /// @param config  the model.
  /// @param part    this rank's shard of every tensor that tensor parallelism divides.
  /// @param units   units of the table, from the embedding (0) and the 2 L branches to the head (2 L + 1); all by
  ///                default.
  /// @param replicated   tensors of at most this number of elements are replicated.
  /// @param experts      experts of every block that has some; all by default.
  /// @throws Error  when the heads cannot be divided equally.
  explicit ParameterTable(const ModelConfig& config, Part part = {}, Range units = {0, -1},
                          std::int64_t replicated = 0, Range experts = {0, -1});

  /// The tensors, in order.
  const std::vector<Parameter>& entries() const { return entries_; }
  /// Number of elements of the flat vector, padding of the vocabulary included.
  std::int64_t elements() const { return elements_; }
  /// The units of this table.
  Range units() const { return units_; }
  /// The elements of the tensors of @p unit, replicated ones and experts excluded; empty for a unit of another table.
  Range unit_elements(int unit) const;
  /// The elements of the replicated tensors, at the end of the flat vector.
  Range replicated() const { return replicated_; }
  /// The elements of all experts of this table, at the end of the flat vector.
  Range experts() const { return experts_; }
  /// The rectangles of @p parameter that are stored here; padding belongs to none of them.
  std::vector<Slab> slabs(const Parameter& parameter) const;

 private:
  void add_embedding(const ModelConfig& config);
  void add_branch(const ModelConfig& config, int branch);
  void add_experts(const ModelConfig& config, int branch);
  void add_head(const ModelConfig& config);
  void add_bert_embedding(const ModelConfig& config);
  void add_bert_branch(const ModelConfig& config, int branch);
  void add_bert_head(const ModelConfig& config);
  void add_norm(const std::string& name, std::int64_t C, int unit);
  void add_linear(const std::string& name, std::int64_t in, std::int64_t out, int unit);
  void add(Parameter parameter);
  void lay_out(std::int64_t replicated);
  Range place_those(const std::function<bool(const Parameter&)>& chosen);

  Part part_;
  Range units_, stored_experts_;
  std::vector<std::string> frozen_;  // patterns
  int next_number_ = 0;
  std::int64_t elements_ = 0;
  Range replicated_{}, experts_{};
  std::vector<Parameter> entries_;
};

/// The parts of @p elements, a range of a table's flat vector, that belong to frozen tensors, counted from its first.
std::vector<Range> frozen_ranges(const ParameterTable& table, Range elements);

/// The parameters of the embedding, or their gradients.
struct EmbeddingTensors {
  Tensor token;     ///< (V, C) wte, tied to the head
  Tensor position;  ///< (context, C) wpe
};

/// The parameters of one expert, an MLP, or their gradients. Tensor parallelism divides them as it does an MLP's.
struct ExpertTensors {
  Tensor in_weight;   ///< (C, 4 C) c_fc
  Tensor in_bias;     ///< (4 C)
  Tensor out_weight;  ///< (4 C, C) c_proj
  Tensor out_bias;    ///< (C)
};

/// The parameters of an attention or MLP branch, or their gradients. F = 3 C (q, k, v) or 4 C (hidden layer). A branch
/// with experts has the norm, the router and the experts.
struct BranchTensors {
  Tensor norm_weight;                       ///< (C)
  Tensor norm_bias;                         ///< (C)
  Tensor in_weight;                         ///< (C, F) c_attn or c_fc
  Tensor in_bias;                           ///< (F)
  Tensor out_weight;                        ///< (C or 4 C, C) c_proj
  Tensor out_bias;                          ///< (C)
  Tensor router = {};                       ///< (C, E)
  std::vector<ExpertTensors> experts = {};  ///< experts that are stored here
  bool unwritten = false;                   ///< gradients of which in_weight and out_weight hold nothing yet
};

/// The parameters of the head, or their gradients.
struct HeadTensors {
  Tensor norm_weight;      ///< (C)
  Tensor norm_bias;        ///< (C)
  Tensor token;            ///< (V, C) wte again; its gradient may have a separate buffer
  bool unwritten = false;  ///< gradients of which token holds nothing yet
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
/// @param replicated  the replicated elements, table.replicated().
std::vector<Tensor> unit_tensors(const ParameterTable& table, int unit, const Tensor& flat,
                                 const Tensor& replicated = {});
/// Names the tensors of unit 0.
/// @param tensors  the result of unit_tensors().
EmbeddingTensors embedding_tensors(const std::vector<Tensor>& tensors);
/// Names the tensors of a unit 1 .. 2 L, or of one with experts those that are no expert's.
/// @param tensors  the result of unit_tensors().
BranchTensors branch_tensors(const std::vector<Tensor>& tensors);
/// Names the tensors of unit 2 L + 1.
/// @param tensors  the result of unit_tensors().
/// @param token    the (V, C) tensor tied to the embedding.
HeadTensors head_tensors(const std::vector<Tensor>& tensors, const Tensor& token);
/// The experts of a unit that are stored here, in order.
/// @param flat  the elements of all experts of the table, table.experts().
std::vector<ExpertTensors> expert_tensors(const ParameterTable& table, int unit, const Tensor& flat);
/// Views of a whole model.
/// @param table  a table of all units without replicated tensors.
/// @param flat   (table.elements()), or those before table.experts(): then the views have no experts.
/// @param tied   (V C) separate sum for the head's contribution to the token embedding's gradient; if it is empty,
///               both contributions are added to @p flat.
ModelTensors model_tensors(const ParameterTable& table, const Tensor& flat, const Tensor& tied = {});

/// Fills @p flat with initial parameters: all of a table, or a run of them. An element's value depends on the seed,
/// its tensor's number and its position in the whole tensor, so
/// every layout starts from the same model. Padding is zero.
/// @param      stream copies each tensor to @p flat, which may be on any device.
/// @param[out] flat   (n) f32, bf16 or f64: elements [first, first + n) of the flat vector.
/// @param      table  which parameters these are.
/// @param      config the model.
/// @param      seed   seed of the random numbers.
/// @param      first  index of the first element in the flat vector.
/// @source     Radford et al. 2019, section 2.3.
void initialize_parameters(Stream& stream, const Tensor& flat, const ParameterTable& table,
                           const ModelConfig& config, std::uint32_t seed, std::int64_t first = 0);

/// SHA-256 over all parameters in table order, as little-endian f32, without padding.
/// @param stream copies each tensor to the host.
/// @param table  a table of all units, whole tensors.
/// @param flat   (table.elements()) f32.
std::string parameter_digest(Stream& stream, const ParameterTable& table, const Tensor& flat);

}  // namespace rankwise
